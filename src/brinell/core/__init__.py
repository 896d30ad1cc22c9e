"""The types everything else is built from; no algorithms."""
