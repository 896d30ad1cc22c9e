"""Analyses of models and Runs beyond robust accuracy."""
