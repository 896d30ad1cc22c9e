"""Leaderboards: their definitions, the benchmark that adds a record, the records, and the site."""
