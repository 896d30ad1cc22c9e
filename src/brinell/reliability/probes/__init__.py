"""Probes of one attack on one model: signs that the attack fails although the model is not robust.

`probe` runs all of them. `indicators` are the six indicators of Pintor et al. 2022, computed from the `trajectories` of
the attack. `experiments` are small experiments whose outcome is known for a working attack. `probed_attack` runs the
attack on the probed samples and counts passes. `result` holds the findings.
"""
