"""`brinell.evaluate` from top to bottom.

`evaluate` calls `coerce` (what users pass), `prepare` (checks, and the plan fitted by `plan`) and a `backend`. The
backend runs `run_plan` on chunks of samples, which runs `run_stage` for every stage: target classes are ranked, the
engine attacks, `verify_points` verifies and refines distances, `rows` makes rows. `audit` draws the samples of an
audit. `context` holds what all of these share, `progress` shows progress. `attack` runs a single attack,
`calibrate_detector` sets the threshold of a detector.
"""
