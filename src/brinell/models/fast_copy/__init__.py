"""Frozen inference copies of a network, for fast attacks on an accelerator.

`inference_copy` makes the copy: channels-last memory, weights cast to bfloat16 on request, input channels padded for
tensor cores. `fused_relu` replaces convolution, batch normalisation and ReLU by one kernel and checks that outputs
stay the same. `TorchClassifier.copy` makes these copies for the oracle; verification never uses a copy.
"""
