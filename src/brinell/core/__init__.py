"""The types that everything else is built from; no algorithms.

`model` is the classifier, `dataset` the samples, `samples` converts what people have to them, `threat` the norm and its
radius, `criterion` what counts as success. `attack` is the protocol of attacks, `keywords` knows what other libraries
call their numbers, `plan` is a chain of attacks, `ranking` the order of their target classes, `references` the natural
inputs that some attacks imitate, `start_pool` where some attacks start, `surrogate` a stand-in for
the model, `certificate` what was proved about a sample. `execution` is how an evaluation is computed.
"""
