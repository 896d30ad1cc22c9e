"""Reproduce the tables and figures of the five papers with the models and data at hand.

- `exhibit`: what an `Exhibit` is: a table or figure of a paper, what it needs, what the paper says, and how to run it.
- `setup`: the models, the data and the threat that the user gives.
- `catalogue`: all exhibits by name, such as mm/table-2.
- `run`: run one exhibit and store its tables and pictures beside the paper's numbers.
- `papers/`: one file per paper with the paper's exhibits.

The command `brinell reproduce` calls `run`.
"""

from brinell.reproduce.catalogue import exhibits, find
from brinell.reproduce.exhibit import Exhibit
from brinell.reproduce.run import Reproduction, reproduce
from brinell.reproduce.setup import Setup

__all__ = ["Exhibit", "Reproduction", "Setup", "exhibits", "find", "reproduce"]
