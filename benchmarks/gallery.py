"""The gallery of broken defences, measured: Figures 2 and 4 of Zimmermann et al. 2022 as one table.

Usage: python benchmarks/gallery.py [--n 16] [--out benchmarks/results/gallery.md]

One thread, CPU.
"""

import argparse
import platform
from pathlib import Path

import torch

from brinell.gallery import Row, measure
from brinell.results import Proportion


def share(p: Proportion | None) -> str:
    return "–" if p is None or not p.n else f"{100 * p.value:.0f} [{100 * p.low:.0f}, {100 * p.high:.0f}]"


def line(row: Row) -> str:
    test = row.stronger.test
    said = "no test" if row.original.test is None else row.original.test.verdict
    after = "" if test is None else test.verdict
    n = "" if test is None else f"{test.n}"
    rasr = "" if test is None else f"{100 * test.rasr:.0f}"
    kappa = "" if test is None else f"{test.kappa:g}"
    cells = [
        row.defence.name, row.defence.imitates, f"{row.defence.threat.eps:g}", kappa,
        n, share(row.original.score), share(row.stronger.score), rasr, said, after, share(row.clean),
        share(row.original.robust), share(row.stronger.robust), f"{row.seconds:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


HEAD = [
    "defence", "imitates", "eps", "κ", "n (test)", "score, original", "score, stronger", "R-ASR, stronger",
    "test of the original", "test of the stronger", "clean", "robust, original", "robust, stronger", "s",
]  # fmt: skip


def report(rows: list[Row], n: int) -> str:
    tested = [r for r in rows if r.caught is not None]
    better = [r for r in tested if r.caught and r.stronger.score.k > r.original.score.k]
    lower = sum(r.stronger.robust.k < r.original.robust.k for r in rows)
    return "\n".join(
        [
            "# The gallery, measured",
            "",
            f"`python benchmarks/gallery.py --n {n}`, one thread, torch {torch.__version__}, {platform.machine()}. "
            f"Percent with 95 % Wilson intervals, n = {n} images for accuracies; scores over the samples of column "
            "n (test). Seconds on a machine that was shared with other work.",
            "",
            f"Of {len(tested)} defences with a test, {len(better)} original evaluations fail it while the stronger one "
            f"scores higher. The stronger evaluation reports a lower robust accuracy for {lower} of {len(rows)}.",
            "",
            f"| {' | '.join(HEAD)} |",
            f"|{'---|' * len(HEAD)}",
            *map(line, rows),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=16)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gallery.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(n=args.n, told=lambda name: print(name, flush=True))
    args.out.write_text(report(rows, args.n))


if __name__ == "__main__":
    main()
