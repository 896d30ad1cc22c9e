"""A leaderboard as a static site: published records, records of others and Runs, side by side; never torch."""

from brinell.leaderboard.site.pages import build
from brinell.leaderboard.site.server import serve

__all__ = ["build", "serve"]
