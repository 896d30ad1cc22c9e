"""Runs on disk and everything computed from them; needs pyarrow, numpy and safetensors, never torch."""

from brinell.results.audit import Audit, audit
from brinell.results.compare import Comparison, compare
from brinell.results.files import Adversarials
from brinell.results.manifest import differences, new_manifest
from brinell.results.merge import merge
from brinell.results.outcome import Cost, Stage
from brinell.results.repeats import Repeats, repeated
from brinell.results.run import Run
from brinell.results.schema import AUDIT, CLEAN, ROWS, SCHEMA_VERSION, conform, counted
from brinell.results.statistics import Difference, Proportion, hidden, mcnemar, paired_difference, upper_bound, wilson
from brinell.results.store import Writer
from brinell.results.verdict import Verdict, judge

__all__ = [
    "AUDIT",
    "CLEAN",
    "ROWS",
    "SCHEMA_VERSION",
    "Adversarials",
    "Audit",
    "Comparison",
    "Cost",
    "Difference",
    "Proportion",
    "Repeats",
    "Run",
    "Stage",
    "Verdict",
    "Writer",
    "audit",
    "compare",
    "conform",
    "counted",
    "differences",
    "hidden",
    "judge",
    "mcnemar",
    "merge",
    "new_manifest",
    "paired_difference",
    "repeated",
    "upper_bound",
    "wilson",
]
