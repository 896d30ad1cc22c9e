"""Draw docs/images/demo.svg: the output of `brinell demo --out run` on a terminal of 100 columns.

Run: python docs/images/screenshot.py [FOLDER OF THE RUN]
"""

import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI

import brinell
from brinell.cli._shared.run_output import print_run
from brinell.cli.commands.demo import EPS, PLAN

HERE = Path(__file__).resolve().parent
# Remove web fonts, which a viewer would load from the network.
WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if len(sys.argv) > 1:
            shutil.copytree(sys.argv[1], Path(folder) / "run")
        os.chdir(folder)
        run = brinell.evaluate("demo", "demo", brinell.Linf(EPS), PLAN, out="run", resume=True)
        console = Console(record=True, width=100, force_terminal=True, color_system="truecolor", file=io.StringIO())
        console.print("$ brinell demo --out run", style="dim", highlight=False)
        print_run(run, console)
        os.chdir(HERE)
    svg = console.export_svg(title="brinell demo", theme=MONOKAI, unique_id="brinell-demo")
    (HERE / "demo.svg").write_text(WEB_FONTS.sub("", svg).replace("Fira Code", "ui-monospace, Menlo, Consolas"))


if __name__ == "__main__":
    main()
