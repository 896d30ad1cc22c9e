"""The command line. It parses options, calls the Python interface and prints the result.

- `main`: the program `brinell` and the list of commands.
- `commands/`: one file per command, named like the command.
- `_shared/`: option declarations, help panels, terminal output.
"""

from brinell.cli.main import main

__all__ = ["main"]
