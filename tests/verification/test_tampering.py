"""One thing at a time is changed in a Run: it is refused, or told, or changes nothing that anybody believes."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn

import brinell
from brinell import BrinellError, Linf, Problem, Run, RunError, evaluate, verify
from brinell.attacks import FGSM, PGD
from brinell.ops import rng
from brinell.results.format.files import read_rows, write_rows
from brinell.testing.runs import reseal

N, CLASSES = 12, 3
# Nothing that is counted, checked or judged follows from these: names, times, places, and what people are told.
FOR_PEOPLE = (
    "environment", "created", "wall_seconds", "startup_seconds", "asked_rows", "notes", "resumed", "schema_version",
    "identity.brinell_format", "identity.model.name", "identity.data.name", "identity.plan.description",
    "identity.plan.citation", "identity.block", "identity.precision", "identity.threat.eps_text", "identity.individual",
)  # fmt: skip
# Less is claimed: an unfinished Run, and one whose adversarials cannot be looked at, say so themselves.
WEAKER = ("finished", "images", "checks", "probes")


def network() -> nn.Module:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, CLASSES)).eval()
    for i, p in enumerate(net.parameters()):
        p.data.copy_(rng.normal(rng.keys(3, torch.tensor([i])), tuple(p.shape))[0])
    return net.requires_grad_(False)


NET = network()


def data() -> Problem:
    x = rng.uniform(rng.keys(5, torch.arange(N)), (1, 4, 4))
    y = NET(x).argmax(1)
    y[3] = (y[3] + 1) % CLASSES
    return Problem(x, y)


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both attacks break some samples, some stand, one is misclassified."""
    out = tmp_path_factory.mktemp("honest") / "run"
    run = evaluate(NET, data(), Linf(0.1), [FGSM(), PGD(3, loss="margin")], out=out, progress=False)
    assert run.clean_accuracy.k == N - 1 and 2 < run.robust_accuracy.k < N - 4
    assert verify(run, NET, data()).ok
    return out


def manifest_of(run: Path) -> Any:
    return json.loads((run / "manifest.json").read_text())


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value, at every depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield (*path, key)
        yield from places(part, (*path, key))


def dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def outcome(run: Path) -> str:
    """ "refused", "told" or "believed"; anything but an error of Brinell's own is raised."""
    try:
        found = verify(run, NET, data(), rerun=0)
        opened = Run.open(run)
        assert str(opened) and str(opened.verdict)
    except BrinellError:
        return "refused"
    return "believed" if found.ok else "told"


def edit(honest: Path, tmp_path: Path, change: Any) -> Path:
    """A copy whose manifest, without the part that is at `change`, is what is given."""
    out = tmp_path / "copy"
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(honest, out)
    (out / "manifest.json").write_text(change if isinstance(change, str) else json.dumps(change))
    if not isinstance(change, str):
        reseal(out)
    return out


ODD = (None, True, -1, 10**30, "x", [], {"x": None})
MISSING = object()
# For what nobody believes anything from: it may raise no error but Brinell's own.
FEW = (MISSING, True, "x")


def changed(manifest: Any, path: tuple[Any, ...], value: Any) -> Any:
    new = copy.deepcopy(manifest)
    at = new
    for key in path[:-1]:
        at = at[key]
    if value is MISSING:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return new


def test_no_value_of_a_manifest_can_be_exchanged_or_left_out(honest: Path, tmp_path: Path) -> None:
    whole = {k: v for k, v in manifest_of(honest).items() if k not in ("checksums", "sha256")}
    free = (*FOR_PEOPLE, *WEAKER)
    run, believed, seen = edit(honest, tmp_path, whole), [], 0
    for path in places(whole):
        name = dotted(path)
        if path[0] in ("checks", "notes") and len(path) > 1 and path[1]:
            continue  # one check stands for all
        for value in FEW if name.startswith(free) else (MISSING, *ODD):
            if (new := changed(whole, path, value)) == whole:
                continue
            (run / "manifest.json").write_text(json.dumps(new))
            reseal(run, checksums=False)
            said, seen = outcome(run), seen + 1
            if said == "believed" and not name.startswith(free):
                believed.append((name, "missing" if value is MISSING else value))
    assert seen > 400
    # What is absent or null is what older Runs lack: the goal, the classes, the strength (then weak), the box.
    # Of a plan of one's own the name means nothing, and of another model a note tells.
    assert [b for b in believed if b[0] in ("identity.plan.name", "identity.model.fingerprint") and b[1] != "x"] == []
    harmless = {
        "identity.goal", "identity.model.classes", "identity.plan.strength", "identity.threat.box",
        "identity.plan.draws", "identity.data.fingerprint",
    }  # fmt: skip
    named = ("identity.plan.name", "identity.model.fingerprint")
    rest = [b for b in believed if b[0] not in named]
    assert [b for b in rest if b[0] not in harmless or b[1] not in ("missing", None)] == []


def test_half_a_manifest_is_refused(honest: Path, tmp_path: Path) -> None:
    text = (honest / "manifest.json").read_text().rstrip()
    run = edit(honest, tmp_path, text)
    for end in range(0, len(text) - 1, 7):
        (run / "manifest.json").write_text(text[:end])
        with pytest.raises(RunError, match="readable JSON"):
            Run.open(run)
    for odd in ("[1]", "3", '{"identity": 3}', text.replace("0.1", "NaN", 1), "\x00", "{" * 100_000):
        (run / "manifest.json").write_text(odd)
        with pytest.raises(RunError):
            Run.open(run)


# What a row tells beside its outcome, which no number follows from.
ASIDE = {
    "seconds", "device", "restart", "target", "clean_margin", "adv_margin", "best_loss", "first_broken_at",
    "precision", "verified_8bit", "judged", "chosen", "flags", "adv_pred", "clean_pred", "forwards", "backwards",
}  # fmt: skip


# The clean input is its own distance away from itself, by an attack that does nothing.
OF_NOTHING = {("clean", "attack_hash"), ("clean", "distance")}


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return "other" if isinstance(value, str) else None


def rows_of(run: Path) -> tuple[Path, list[dict[str, Any]], pa.Schema]:
    (shard,) = sorted((run / "rows").iterdir())[:1]
    table = pa.concat_tables(read_rows(f) for f in sorted((run / "rows").iterdir()))
    return shard, table.to_pylist(), table.schema


def rewritten(run: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> Path:
    for file in (run / "rows").iterdir():
        file.unlink()
    write_rows(run / "rows" / "00000001-all.parquet", pa.Table.from_pylist(rows, schema=schema))
    reseal(run, checksums=False)
    return run


def test_no_value_of_a_row_that_counts_can_be_exchanged(honest: Path, tmp_path: Path) -> None:
    run = edit(honest, tmp_path, manifest_of(honest))
    _, rows, schema = rows_of(run)
    assert outcome(rewritten(run, rows, schema)) == "believed"
    believed = set()
    kinds = {(row["attack"], row["broken"]): k for k, row in enumerate(rows)}
    assert len(kinds) >= 5
    for k, row in ((k, rows[k]) for k in kinds.values()):
        for name in row:
            if row[name] is None or name in ASIDE or (row["attack"], name) in OF_NOTHING:
                continue
            new = [dict(r) for r in rows]
            new[k][name] = other(row[name])
            if outcome(rewritten(run, new, schema)) == "believed":
                believed.add((name, row["attack"], row["broken"]))
    assert believed == set()


def test_no_row_can_be_left_out_or_added(honest: Path, tmp_path: Path) -> None:
    run = edit(honest, tmp_path, manifest_of(honest))
    _, rows, schema = rows_of(run)
    for k in range(len(rows)):
        assert outcome(rewritten(run, rows[:k] + rows[k + 1 :], schema)) != "believed", rows[k]
    kinds = {(row["attack"], row["broken"]): k for k, row in enumerate(rows)}
    for k, row in ((k, rows[k]) for k in kinds.values()):
        assert outcome(rewritten(run, [*rows, {**row, "sample_id": 99}], schema)) != "believed"
        assert outcome(rewritten(run, [*rows, {**row, "attack": "unheard-of"}], schema)) != "believed"
        if not row["broken"]:
            assert outcome(rewritten(run, [*rows, {**row, "broken": True, "verified": True}], schema)) != "believed"
            again = [*rows[:k], {**row, "broken": True, "verified": True}, *rows[k + 1 :]]
            assert outcome(rewritten(run, again, schema)) != "believed"


def test_a_run_of_other_samples_labels_or_inputs_is_told(honest: Path) -> None:
    d = data()
    for x, y, ids in (
        (d.x.flip(0), d.y, d.ids),
        (d.x, d.y.roll(1), d.ids),
        (d.x, d.y, d.ids.roll(1)),
        (torch.cat([d.x[:-1], d.x[:1]]), d.y, d.ids),
    ):
        assert not verify(honest, NET, Problem(x, y, ids)).ok


def test_another_model_is_a_note_and_what_it_judges_otherwise_a_failure(honest: Path) -> None:
    twin = nn.Sequential(NET, nn.Identity()).eval()
    found = verify(honest, twin, data())
    assert found.ok and "another model" in found.notes[0] and "another model" in str(found)
    assert not verify(honest, nn.Sequential(NET, nn.Linear(CLASSES, CLASSES)).eval(), data()).ok


def test_an_unfinished_run_is_checked_as_far_as_it_goes(honest: Path, tmp_path: Path) -> None:
    run = edit(honest, tmp_path, {**manifest_of(honest), "finished": False})
    _, rows, schema = rows_of(run)
    kept = [r for r in rows if r["sample_id"] not in (0, 1)]
    used = {r["adv_row"] for r in kept if r["adv_shard"]}
    assert used
    found = verify(rewritten(run, kept, schema), NET, data())
    assert not found.failures and [message[:23] for message in found.objections] == ["The Run is not finished"]
    kept[0]["seed"] = 7
    assert not verify(rewritten(run, kept, schema), NET, data()).ok


def test_the_program_says_what_is_wrong(honest: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from brinell.cli.main import app

    out = tmp_path / "run"
    brinell.evaluate("demo", brinell.data.load("demo", 8), Linf(0.1), "fgsm", out=out, progress=False)
    text = (out / "manifest.json").read_text()
    call = ["verify", str(out), "--model", "demo", "--data", "demo", "--n", "8"]
    assert CliRunner().invoke(app, call).exit_code == 0
    (out / "manifest.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    done = CliRunner().invoke(app, call)
    assert "as Brinell wrote it" in str(done.exception)
    reseal(out)
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 1 and "Rows have the seeds [0], but the manifest has the seed 1." in done.output
    told = json.loads(CliRunner().invoke(app, [*call, "--json"]).stdout)
    assert not told["ok"] and told["objections"] == ["Rows have the seeds [0], but the manifest has the seed 1."]
    (out / "manifest.json").write_text(text[: len(text) // 2])
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 2 or "readable JSON" in str(done.exception)
