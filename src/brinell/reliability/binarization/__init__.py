"""The binarization test: whether an attack finds adversarials that are known to exist."""
