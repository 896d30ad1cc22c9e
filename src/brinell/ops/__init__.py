"""Pure functions of tensors with one row per sample. They import torch, but no other part of Brinell.

`norms/`: Linf, L2, L1 and L0. `losses`: the losses of attacks, by name. `rng`: noise that depends on a key and a
position only. `rowwise`: selecting, merging and comparing rows of tensors and of dataclasses of tensors.
`device_cache`: tables of constants, once per device. `memory`: freed memory is kept for the next step on a CPU.
`defaults`: torch's default dtype and device. `types`: names for tensor shapes. Every function treats each row
independently of the others, to the last bit, which is what makes outcomes independent of batches, slots and workers.
"""
