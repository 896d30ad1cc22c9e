"""The steps of `brinell.evaluate`, from the arguments to the rows.

`evaluate` calls `coerce` (converts the arguments), `prepare` (runs checks, fits the plan with `plan`) and a `backend`.
The backend runs `run_plan` on chunks of samples. `run_plan` runs `run_stage` for every stage: target classes are
ranked, the engine attacks, `verify_points` verifies and refines distances, `rows` makes rows. `audit` draws the samples
of an audit. `context` holds the data that these modules share, `progress` shows progress. `attack` runs a single
attack, `adaptive` extends a plan for models that hide their gradients, `calibrate_detector` sets the threshold of a
detector. `certificates` adds proofs to a finished Run.
"""
