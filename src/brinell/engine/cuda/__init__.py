"""Acceleration of the engine, chosen by `brinell.engine.accelerate`; outcomes stay the same.

`graphs` captures attack steps as CUDA graphs and caches them. `scheduler` runs several micro-batches at once and sets
how often the host syncs. `speculative` fills empty slots with further restarts and target classes of samples that are
under attack; `parallel_restarts` runs all restarts of an attack at once.
`oracle` queries a fast copy of the model, `compile` compiles its network. `kept` keeps all of this for the next
evaluation of the same model. `autotune` times captured calls for cost estimates.
"""
