"""Attacks that look for the smallest distance at which a sample breaks."""
