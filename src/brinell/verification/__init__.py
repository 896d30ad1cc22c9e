"""Whether a stored Run is true: its rows, its adversarials, its origin; bundles and submissions of others."""
