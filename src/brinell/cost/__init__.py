"""Estimate the cost of an evaluation before it runs.

`estimate` holds `brinell.estimate`, and announces the cost at the start of `brinell.evaluate`. `pilot` attacks a few
samples for at most two seconds, `outcomes` predicts the outcome of every sample from them, `extrapolate` adds up passes
and seconds, `budget` holds the result and the most queries of a stage. `precision` chooses for precision="auto".
"""
