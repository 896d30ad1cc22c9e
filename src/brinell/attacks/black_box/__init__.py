"""Attacks without gradients: they read scores or decisions only."""
