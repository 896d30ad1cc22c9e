"""The engine runs one attack on many samples; it is the only caller of the model.

`loop` holds the `Engine`; the evaluation calls `Engine.run`. `scheduler` keeps the slots full, with
`parallel_attempts` also where samples are few; `slots` holds samples under attack. `attack_step` does one step: it
queries the model through `oracle`, updates the best point of every sample
(`best_so_far`) and calls the attack's `step`. `calls` counts the calls of the model and names the one that fails.
`exact_sizes` finds other sizes of calls with the same response. `surrogate_oracle` lets an attack follow another model.
`precision` sets the number format, `events` are for listeners.
`attack_batch` attacks a training batch. All of this is the CPU path. `accelerate` is the switch to `cuda/`.
"""
