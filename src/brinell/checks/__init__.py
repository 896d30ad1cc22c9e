"""Checks before an evaluation; every check returns a `Finding`, or raises an error if nothing can be evaluated.

`model` checks the outputs of the model, `gradients` checks its gradients and its forward pass, `detector` checks
how the plan handles a detector, and `leaderboard` checks the restrictions of a leaderboard.
`brinell.evaluation.prepare` runs the first three. To add a check of the model, write a function in `model` and call it
in `run_model_checks`.
"""
