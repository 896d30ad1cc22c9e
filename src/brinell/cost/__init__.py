"""Estimate the cost of an evaluation before it runs.

`estimate` holds `brinell.estimate`, and announces the cost at the start of `brinell.evaluate`. `pilot` attacks a few
samples for at most two seconds, `outcomes` predicts from these samples the outcome of every sample, and `extrapolate`
adds up passes and seconds. `budget` holds the result, and says how many queries a stage makes at most. `settings`
chooses rows per call, precision and execution on a GPU, by the cost that `model_cost` counts; `precision` tries whether
lower precision finds as much.
"""
