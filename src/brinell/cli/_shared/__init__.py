"""Shared by the commands: option declarations, help panels, loading of models and data, terminal output."""
