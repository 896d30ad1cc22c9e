"""Tables and figures of the Minimum-Margin paper (Gao et al. 2022)."""

from brinell.analysis.rescalings import rescalings
from brinell.reproduce.exhibit import Exhibit
from brinell.reproduce.setup import Setup
from brinell.results.analyses import AnalysisReport, Table

COLUMNS = ("ID", "rescaling", "set size", "ranking", "diff.", "A∪B−A", "A∪B−B")


def _rescalings(setup: Setup, steps: str) -> AnalysisReport:
    folder = setup.folder(steps)
    table = rescalings(
        setup.classifier, setup.problem, setup.threat, steps=steps, out=folder, resume=folder.exists(),
        seed=setup.seed, device=setup.device, progress=setup.progress,
    )  # fmt: skip
    rows = tuple(
        (s.rescaling.id, s.rescaling.name, s.size, s.place, s.difference, len(s.only_here), len(s.only_natural))
        for s in table.lines
    )
    title = f"samples broken under each rescaling, {setup.threat}, n = {table.clean.n}"
    return AnalysisReport(
        "rescalings", title, f"Natural logits break {table.lines[0].share}.", (Table(title, COLUMNS, rows),)
    )


# Table 2 of the paper: CIFAR-10, 10,000 samples.
TABLE_2 = (
    ("A", "Natural logits", 5219, "1", 0, None, None), ("B1", "Softmax", 5172, "2", -47, 4, 51),
    ("B2", "Max", 5165, "=3", -54, 5, 59), ("B3", "Sum", 5165, "=3", -54, 5, 59),
    ("B4", "Min-Max", 5121, "5", -98, 3, 101),
    ("B5", "DLR", 5078, "6", -141, 2, 143), ("B6", "Sigmoid", 4820, "7", -399, 1, 400),
)  # fmt: skip


EXHIBITS: tuple[Exhibit, ...] = (
    Exhibit(
        "mm/table-2", "Seven rescalings of the logits, 20 fixed steps", "Table 2",
        needs="CIFAR-10 and the paper's ResNet-18", cost="1,260 steps per sample",
        published=(Table("CIFAR-10, Linf, eps = 8/255, n = 10,000", COLUMNS, TABLE_2),),
        measure=lambda setup: _rescalings(setup, "fixed"),
    ),
)  # fmt: skip
