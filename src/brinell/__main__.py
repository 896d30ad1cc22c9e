"""`python -m brinell`: the program `brinell`, for when its script is not on PATH."""

from brinell.cli import main

if __name__ == "__main__":
    main()
