"""The command line: the same power as the Python interface, one file per verb."""

from brinell.cli.main import main

__all__ = ["main"]
