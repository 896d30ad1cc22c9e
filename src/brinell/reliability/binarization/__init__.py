"""The binarization test (Zimmermann et al. 2022): an attack must find adversarial examples that are known to exist.

`test` is the entry point, `test_attack`. `planting` draws the points of both classes around a sample. `features` finds
the inputs of a network's last layer; `readouts` fits a two-class readout to them, with the solver in `margin`.
`binary_models` joins features and readouts into one two-class classifier per sample. `trials` attacks these classifiers
with the decision boundary closer or less close to the known adversarial (κ). `result` holds the outcome,
`BinarizationTest`, and describes it.
`several` tests several attacks, also over the hardness of the test (`test_attacks`).
"""
