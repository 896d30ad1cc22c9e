"""The binarization test (Zimmermann et al. 2022): an attack must find adversarial examples that are known to exist.

`test` is the entry point, `test_attack`. `planting` draws the points of both classes around a sample. `features` finds
what the last layer of a network sees; `readouts` fits a two-class readout to it, with the solver in `margin`.
`binary_models` joins both into one two-class classifier per sample. `trials` attacks these classifiers at one closeness
of the decision boundary after another. `result` holds the outcome, `BinarizationTest`, and describes it.
"""
