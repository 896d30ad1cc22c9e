"""Attacks on a classifier and its detector together."""
