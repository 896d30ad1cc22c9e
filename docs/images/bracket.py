"""Draw docs/images/bracket.svg: what attacks break and what is certified, by radius, for the demo model.

Usage: python docs/images/bracket.py OUT.svg    (needs matplotlib)
"""

import sys

import brinell


def main(out: str) -> None:
    images = brinell.data.load("demo", n=40)
    curve = brinell.curve("demo", images, "Linf", "minimal-quick", certify=True, progress=False)
    curve.plot(out, marks=[0.01], title="The truth lies in the hatched band")


if __name__ == "__main__":
    main(sys.argv[1])
