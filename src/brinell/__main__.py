"""`python -m brinell`: the program, where its script is not on the path."""

from brinell.cli import main

if __name__ == "__main__":
    main()
