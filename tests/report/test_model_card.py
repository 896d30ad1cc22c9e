"""A model card has the numbers of the Run with n and interval, in metadata that a YAML reader can read."""

import json
import re
from pathlib import Path

import pytest

import brinell
from brinell.attacks.catalogue import PLANS
from brinell.report.model_card import as_model_card
from brinell.report.paper_text import _cited, references, threat_text
from brinell.results import Proportion, Run

RUN = Run.open(Path(__file__).parents[1] / "results" / "golden_run_v1")


def test_the_metadata_has_every_number_and_the_verdict() -> None:
    yaml = as_model_card([RUN]).split("---\n")[1]
    facts = {}
    for block in re.split(r"^    - type: ", yaml, flags=re.MULTILINE)[1:]:
        kind, *lines = block.splitlines()
        pairs = (line.strip().partition(": ") for line in lines if ": " in line)
        facts[kind] = {key: json.loads(value) for key, _, value in pairs}
    for kind, p in (("accuracy", RUN.clean_accuracy), ("robust_accuracy", RUN.robust_accuracy)):
        assert facts[kind]["value"] == pytest.approx(p.value, abs=1e-6) and facts[kind]["n"] == p.n
        assert facts[kind]["interval_95"] == pytest.approx([p.low, p.high], abs=1e-5)
    assert facts["robust_accuracy"]["verdict"] == RUN.verdict.level
    assert facts["robust_accuracy"]["plan"] == RUN.identity.plan.name
    # Hugging Face refuses a source with a name and no address.
    assert "source:" not in yaml and facts["robust_accuracy"]["brinell"] == RUN.environment.brinell


def test_certified_accuracy_is_in_metadata_and_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ertified" not in as_model_card([RUN])
    proved = Proportion(1, RUN.robust_accuracy.n)
    monkeypatch.setattr(Run, "certified_accuracy", proved)
    _, yaml, text = as_model_card([RUN]).split("---\n", 2)
    assert f'- type: certified_accuracy\n      name: "Certified accuracy, {threat_text(RUN)}"\n' in yaml
    assert f"      value: {proved.value:.6g}\n" in yaml
    assert "| clean accuracy | certified accuracy | robust accuracy |" in text
    assert f"| {RUN.clean_accuracy} | {proved} | {RUN.robust_accuracy} |" in text


def test_the_section_is_a_table_and_the_verdict(tmp_path: Path) -> None:
    text = brinell.report.text([RUN, RUN], "model-card").split("## Adversarial robustness")[1]
    assert text.count(f"| {RUN.robust_accuracy} |") == 2 and str(RUN.verdict) in text


WORKS = sorted({work for plan in PLANS.values() for work in (plan.citation or "").split("; ") if work})


@pytest.mark.parametrize("work", WORKS)
def test_every_work_that_a_plan_cites_is_complete(work: str) -> None:
    entry = _cited(work)
    fields = dict(re.findall(r"^  (\w+) = \{(.+)\},?$", entry, re.MULTILINE))
    assert {"author", "title", "year"} <= fields.keys() and {"booktitle", "howpublished"} & fields.keys()
    assert " and " in fields["author"] and "others" not in fields["author"] and fields["year"] in work
    # The citation names the first author of the entry, and its title begins like that of the entry.
    assert fields["author"].partition(",")[0] in work
    title = re.search(r"\d{4}, (.{8})", work)
    assert title is None or title[1].lower() in fields["title"].lower()


def test_every_reference_is_cited() -> None:
    assert all(any(key in work for work in WORKS) for key in references())
