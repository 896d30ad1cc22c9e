"""A leaderboard as a static site: published records, records of others and Runs, side by side; never torch."""

from brinell.report.leaderboard.serve import serve
from brinell.report.leaderboard.site import build

__all__ = ["build", "serve"]
