"""Draw docs/images/dossier.png: the first screen of the dossier of two Runs on the embedded images.

Run: python docs/images/dossier.py; needs Chromium, and about a minute.
"""

import sys
import tempfile
from pathlib import Path

import brinell
from brinell.dossier import new_key, write_dossier

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.browser import Browser  # noqa: E402

N, WIDTH, HEIGHT = 200, 1280, 1060
SYSTEM = """
[system]
name = "Clothing sorter CS-2"
intended_purpose = "Sorts images of single pieces of clothing into ten classes for a conveyor."
[[levels]]
measure = "robust"
norm = "Linf"
eps = "8/255"
at_least = 70
[[levels]]
measure = "robust"
norm = "L2"
eps = 0.5
at_least = 60
[[levels]]
measure = "clean"
norm = "Linf"
at_least = 95
"""


def main() -> None:
    images = brinell.data.load("demo", n=N)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        threats = {"fast": brinell.Linf("8/255"), "pgd20": brinell.L2(0.5)}
        runs = [brinell.evaluate("demo", images, t, plan, out=place / plan) for plan, t in threats.items()]
        new_key(place / "key.pem")
        (place / "system.toml").write_text(SYSTEM)
        options = {"key": place / "key.pem", "system": place / "system.toml", "date": "2026-03-01"}
        page = write_dossier(runs, place / "dossier.html", **options)[0]
        with Browser() as browser:
            shown = browser.page(WIDTH, HEIGHT)
            shown.open(page.as_uri())
            shown.screenshot(HERE / "dossier.png")


if __name__ == "__main__":
    main()
