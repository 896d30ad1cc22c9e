"""Draw docs/images/report.png: the first screen of the report of the demonstration (`brinell demo`).

Run: python docs/images/report.py [FOLDER OF THE RUN]; needs Chromium, and some minutes if the Run does not exist.
"""

import sys
import tempfile
from pathlib import Path

import brinell
from brinell.cli.commands.demo import EPS, PLAN

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from tests.browser import Browser  # noqa: E402

WIDTH, HEIGHT = 1280, 1400


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = sys.argv[1] if len(sys.argv) > 1 else f"{folder}/run"
        images = brinell.data.load("demo")
        run = brinell.evaluate("demo", images, brinell.Linf(EPS), PLAN, out=path, resume=True)
        page = run.report(Path(folder) / "report.html", problem=images)
        with Browser() as browser:
            shown = browser.page(WIDTH, HEIGHT)
            shown.open(page.as_uri())
            shown.screenshot(HERE / "report.png")


if __name__ == "__main__":
    main()
