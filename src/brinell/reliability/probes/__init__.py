"""Probes of one attack on one model: signs that the attack fails although the model is not robust.

`probe` runs all indicators and experiments. `indicators` are the six indicators of Pintor et al. 2022, computed from
the attack's trajectories. `experiments` are small experiments whose outcome is known for a working attack; they run the
attack on the probed samples and count passes. `result` holds the findings.
"""
