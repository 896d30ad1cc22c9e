"""Probes: indicators of attack failure, and experiments that must turn out one way."""
