"""Draw docs/images/curves.svg: the curves of the demo model and of a copy trained without attacks.

Usage: python docs/images/curves.py OUT.svg    (needs matplotlib)
"""

import sys
import tempfile

import brinell


def main(out: str) -> None:
    images = brinell.data.load("demo")
    half = len(images) // 2
    train, test = images[:half], images[half:]
    with tempfile.TemporaryDirectory() as folder:
        recipe = brinell.train.Recipe(epochs=30, batch=32, lr=0.05)
        brinell.train.fit(
            "demo", train, brinell.Linf(0.1), "standard", recipe, out=folder, validation=0, progress=False
        )
        plain = brinell.train.load(folder)
        curves = [brinell.curve(model, test, "Linf", "minimal-quick", progress=False) for model in (plain, "demo")]
    names = ("trained without attacks", "trained against Linf 0.1")
    named = [brinell.Curve(c.norm, c.ids, c.distances, n) for c, n in zip(curves, names, strict=True)]
    named[0].plot(out, named[1:], marks=[0.1], title="Robust accuracy at every size of the perturbation")


if __name__ == "__main__":
    main(sys.argv[1])
