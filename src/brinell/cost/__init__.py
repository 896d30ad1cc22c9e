"""The cost of an evaluation before it runs; off the main path.

`estimate` is `brinell.estimate` and the announcement that `brinell.evaluate` makes. `pilot` attacks a few samples
for at most two seconds, `outcomes` predicts the outcome of every sample from them, `extrapolate` adds up passes and
seconds, `budget` holds the result and the limits of a stage. `precision` chooses the precision for
precision="auto".
"""
