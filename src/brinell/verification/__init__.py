"""Verify stored Runs (rows, adversarials, model and data), pack Runs as bundles, and review submissions.

`verify` is `brinell.verify`. `consistency` checks rows against the manifest, `attacked` checks which samples every
attack attacked, `provenance` checks the data and the model, `plans` the plan, `adversarials` checks every stored point,
`certificates` checks every certificate, and `randomised` allows for chance in randomised models. `rerun` attacks
survivors again, and `sampling` says how many. `result` sorts the findings. `bundle` packs a Run as one file,
`submission` checks one submission, and `review` is `brinell.review`: the best known bound on the robust accuracy from
several submissions. Users, the command line and the leaderboard call these modules.
"""
