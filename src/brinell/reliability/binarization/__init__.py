"""The binarization test (Zimmermann et al. 2022): an attack must find adversarial examples that are known to exist.

`test` holds the entry point, `test_attack`. `planting` draws points of two classes around a sample. `features` finds
the inputs of a network's last layer; `readouts` fits a two-class readout to these inputs, with the solver in `margin`.
`binary_models` joins features and readouts into one two-class classifier per sample. `trials` attacks these classifiers
at several values of κ, the closeness of the decision boundary to the known adversarial. `result` holds the outcome,
`BinarizationTest`, and describes it. `several` tests several attacks, at one hardness or at several (`test_attacks`).
"""
