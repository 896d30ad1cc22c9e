"""Plans, the evaluation itself, verification and checks."""
