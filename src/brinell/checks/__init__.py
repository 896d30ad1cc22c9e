"""Checks around an evaluation; every check returns a `Finding`, or raises an error if nothing can be evaluated.

`model` checks the outputs of the model, `gradients` checks its gradients and its forward pass, `differences` compares
gradients with finite differences, `detector` checks how the plan handles a detector, and `leaderboard` checks the
restrictions of a leaderboard. `brinell.evaluation.prepare` runs the first four before the attacks. After them
`brinell.evaluation.evaluate` runs `survivors`: short attacks of another kind (`walks`), and answers asked for again.
To add a check of the model, write a function in `model` and call it in `run_model_checks`.
"""
