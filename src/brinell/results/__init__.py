"""Runs on disk and everything that is computed from them; needs pyarrow, numpy and safetensors, never torch.

`run` reads a Run. `row_queries` counts rows, `statistics` has intervals and tests, `verdict` judges whether the result
can be trusted, and `evidence` lists what that rests on. `audit_bound` bounds how many samples a short plan missed,
`layers` has the rest of its evidence, `repeats` measures how the accuracies of a randomised model vary, `seeds`
measures how the robust accuracy varies with the seed. `bracket` joins the certified and the robust accuracy. `compare`
and `merge` take several Runs, `summary` describes a Run as text, and `analyses` stores reports in the folder of a Run.
`format` is the format on disk. Evaluations write Runs; verification, reports, curves and leaderboards read them.
"""

from brinell.results.audit_bound import Audit
from brinell.results.bracket import Bracket
from brinell.results.compare import Comparison, compare
from brinell.results.format.files import Adversarials
from brinell.results.format.manifest import differences, new_manifest
from brinell.results.format.schema import AUDIT, CLEAN, ROWS, SCHEMA_VERSION, Evidence, conform, counted, is_evidence
from brinell.results.format.writer import Writer
from brinell.results.layers import Layers
from brinell.results.merge import merge
from brinell.results.repeats import Repeats, repeated
from brinell.results.row_queries import Cost, StageResult
from brinell.results.run import Run, open_runs
from brinell.results.seeds import SeedRuns
from brinell.results.statistics import Difference, Interval, Proportion, mcnemar, paired_difference, upper_bound, wilson
from brinell.results.verdict import Verdict, judge

__all__ = [
    "AUDIT",
    "CLEAN",
    "ROWS",
    "SCHEMA_VERSION",
    "Adversarials",
    "Audit",
    "Bracket",
    "Comparison",
    "Cost",
    "Difference",
    "Evidence",
    "Interval",
    "Layers",
    "Proportion",
    "Repeats",
    "Run",
    "SeedRuns",
    "StageResult",
    "Verdict",
    "Writer",
    "compare",
    "conform",
    "counted",
    "differences",
    "is_evidence",
    "judge",
    "mcnemar",
    "merge",
    "new_manifest",
    "open_runs",
    "paired_difference",
    "repeated",
    "upper_bound",
    "wilson",
]
