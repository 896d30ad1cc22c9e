"""A leaderboard as a static site: published records, records of others and Runs, side by side; never torch."""

from brinell.leaderboard.site.serve import serve
from brinell.leaderboard.site.build import build

__all__ = ["build", "serve"]
