"""The leaderboard as a static site: published records, other records and Runs. Never imports torch.

- `pages`: build the site; `server`: serve it locally; `files/`: templates, style and script.
- `entries`: collect records and Runs; `boards`: group and rank them; `columns`: the table of a board.
- `charts`: the charts of a board; `sanitise`: make text from records safe.
"""

from brinell.leaderboard.site.pages import build
from brinell.leaderboard.site.server import serve

__all__ = ["build", "serve"]
