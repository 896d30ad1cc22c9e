"""The gallery of broken defences, measured: Figures 2 and 4 of Zimmermann et al. 2022 as one table.

Usage: python benchmarks/gallery.py [--n 32] [--out benchmarks/results/gallery.md]

One thread, CPU.
"""

import argparse
import platform
from pathlib import Path

import torch

from brinell.defences import DefenceResult, measure
from brinell.defences.measure import SAMPLES
from brinell.results import Proportion


def share(p: Proportion) -> str:
    return "–" if not p.n else f"{100 * p.value:.0f} [{100 * p.low:.0f}, {100 * p.high:.0f}]"


def line(row: DefenceResult) -> str:
    test = row.stronger.tests[row.original.test.kind]
    # Of a detector the worse test may be another one for the stronger evaluation.
    counts = dict.fromkeys((row.original.test.n, row.stronger.test.n))
    cells = [
        row.defence.name, row.defence.imitates, f"{row.defence.threat.eps:g}", f"{test.kappa:g}",
        ", ".join(map(str, counts)), share(row.original.score), share(row.stronger.score), share(test.level.rasr),
        row.original.test.verdict, row.stronger.test.verdict, share(row.clean),
        share(row.original.robust), share(row.stronger.robust), f"{row.seconds:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def halves(row: DefenceResult) -> list[str]:
    """Both tests of a detector, one line each."""
    out = []
    for kind, test in row.original.tests.items():
        after = row.stronger.tests[kind]
        cells = [
            row.defence.name, kind, f"{test.kappa:g}", f"{test.n}", f"{test.skipped}", f"{test.drawn}",
            share(test.level.score), share(after.level.score), share(after.level.rasr),
            test.verdict, after.verdict,
        ]  # fmt: skip
        out.append(f"| {' | '.join(cells)} |")
    return out


HEAD = [
    "defence", "imitates", "eps", "κ", "n (test)", "score, original", "score, stronger", "R-ASR, stronger",
    "test of the original", "test of the stronger", "clean", "robust, original", "robust, stronger", "s",
]  # fmt: skip


BOTH = [
    "defence", "test", "κ", "n", "skipped", "points drawn", "score, original", "score, stronger", "R-ASR, stronger",
    "test of the original", "test of the stronger",
]  # fmt: skip


def report(rows: list[DefenceResult], n: int) -> str:
    better = [r for r in rows if r.caught and r.stronger.score.value > r.original.score.value]
    lower = sum(r.stronger.robust.k < r.original.robust.k for r in rows)
    told = sum(r.stronger.robust.k < r.original.robust.k for r in better)
    guarded = [r for r in rows if len(r.original.tests) > 1]
    return "\n".join(
        [
            "# The gallery, measured",
            "",
            f"`python benchmarks/gallery.py --n {n}`, one thread, torch {torch.__version__}, {platform.machine()}. "
            f"Percent with 95 % Wilson intervals, n = {n} images for accuracies; scores over the samples of column "
            "n (test). Seconds on a machine that was shared with other work.",
            "",
            f"Of {len(rows)} defences, {len(better)} original evaluations fail the test while the stronger one scores "
            f"higher; {told} of these report a higher robust accuracy than the stronger one. The stronger evaluation "
            f"reports a lower robust accuracy for {lower} of {len(rows)}. Scores of defences with a detector are the "
            "worse of their two tests.",
            "",
            f"| {' | '.join(HEAD)} |",
            f"|{'---|' * len(HEAD)}",
            *map(line, rows),
            "",
            "## Both tests of the detectors",
            "",
            f"| {' | '.join(BOTH)} |",
            f"|{'---|' * len(BOTH)}",
            *(text for row in guarded for text in halves(row)),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=SAMPLES)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gallery.md"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = measure(n=args.n, on_start=lambda name: print(name, flush=True))
    args.out.write_text(report(rows, args.n))


if __name__ == "__main__":
    main()
