"""Edit a Run by hand so that its model looks more robust, and count which level of checking notices it.

Every forgery changes a printed number, the plan, the threat or the verdict of an honest Run, in a consistent way where
the forger can, and makes all checksums anew. `noticed` means an error or an objection; the levels are those of
docs/submissions.md. A forgery that only attacks can reveal, and that hides fewer samples than `brinell verify` states
it would find, is within the stated probability if attacking every survivor finds it.
`python benchmarks/fortress_forge.py` prints the table; `--out FOLDER` writes it as Markdown and JSON.
"""

import argparse
import copy
import hashlib
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, Plan, Problem, Run, Stage
from brinell.attacks import PGD
from brinell.core.surrogate import Surrogate
from brinell.errors import BrinellError
from brinell.ops.rowwise import flat
from brinell.results.format import files
from brinell.results.format.manifest import CHECKSUMS, MANIFEST, SEAL, attack_hash
from brinell.results.format.schema import ROWS, counted
from brinell.testing.runs import reseal
from brinell.testing.worlds import linear_world
from brinell.verification.bundle import pack
from brinell.verification.sampling import half_interval

N, EPS, WRONG = 40, 0.016, 4
PARTS = (slice(0, 15), slice(15, N))
RUNS = ("plain", "audited", "merged", "scaled", "layered", "certified", "searched", "masked")
# The methods of the Runs with certificates: CROWN leaves samples open, and the search finds counterexamples.
METHODS = {"certified": "crown", "searched": "branch-and-bound"}
# An attack that misses samples between 0.6 eps and eps, which an audit finds.
SHORT = PGD(steps=1, rel_step=0.6, random_start=False)
LEVELS = ("open", "verify", "verify with model", "bundle")
Rows = list[dict[str, Any]]


class Outcome(NamedTuple):
    """How many forgeries of one kind were made, how many of them held, and what happened in those that did not."""

    kind: str
    tried: int
    held: int
    details: tuple[str, ...] = ()


class Scaled(nn.Module):
    """A model whose outputs lie in [0, 1], which a check warns about."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.eval()

    def forward(self, x: Tensor) -> Any:
        z = self.net(x)
        return (z - z.amin(1, keepdim=True)) / (z.amax(1, keepdim=True) - z.amin(1, keepdim=True))


class Plain(nn.Module):
    """A linear model."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return nn.functional.linear(flat(x), self.weight, self.bias)


class Steps(nn.Module):
    """Rounds inputs, which has no gradient."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.round(64 * x) / 64


class Masked(nn.Module):
    """A model behind a rounding, which an attack straight through it breaks."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.steps, self.net = Steps(), net
        self.eval()

    def forward(self, x: Tensor) -> Any:
        return self.net(self.steps(x))


def with_relu(net: Plain) -> nn.Module:
    """Return the same function as a network of ReLUs, z = relu(z) - relu(-z), whose bounds are not exact."""
    first, last = nn.Linear(net.weight.shape[1], 2 * len(net.bias)), nn.Linear(2 * len(net.bias), len(net.bias))
    with torch.no_grad():
        first.weight.copy_(torch.cat([net.weight, -net.weight]))
        first.bias.copy_(torch.cat([net.bias, -net.bias]))
        last.weight.copy_(torch.cat([torch.eye(len(net.bias)), -torch.eye(len(net.bias))], 1))
        last.bias.zero_()
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), last).eval().requires_grad_(False)


class World:
    """A linear model, data with a few wrong labels, and honest Runs.

    They are: plain, audited, merged, with a warning, with an audit near the decision boundary, with certificates, and
    with an attack through a surrogate.
    """

    def __init__(self, folder: Path) -> None:
        world = linear_world(classes=4, shape=(1, 5, 5), n=N, seed=3)
        y = world.y.clone()
        y[:: N // WRONG] = (y[:: N // WRONG] + 1) % 4
        self.net, self.data = Plain(world.weight, world.bias), Problem(world.x, y, name="linear")
        self.reach = world.distance("Linf").tolist()
        self.folder = folder
        self.models = {
            "scaled": Scaled(self.net),
            "masked": Masked(self.net),
            **dict.fromkeys(METHODS, with_relu(self.net)),
        }

    def run(self, name: str) -> Path:
        """Return the folder of an honest Run; it is made when it is first needed."""
        path = self.folder / name
        if path.exists():
            return path
        if name == "merged":
            parts = [self._evaluated(f"part{k}", self.data[part], "pgd20") for k, part in enumerate(PARTS)]
            Run.merge(parts, path)
            return path
        short = Stage(SHORT, label="short")
        plans = {
            "audited": Plan("short", (short, Stage(PGD(), share=0.5)), strength="audited"),
            "layered": Plan("layered", (short, Stage(PGD(), share=0.1, near=0.5)), strength="audited"),
            "masked": Plan("straight", (Stage(PGD(), via=Surrogate(through=("steps",)), label="pgd, straight"),)),
            **dict.fromkeys(METHODS, Plan("weak", (short,))),
        }
        path = self._evaluated(name, self.data, plans.get(name, "pgd20"))
        if name in METHODS:
            brinell.certify(path, self.model(name), self.data, method=METHODS[name], progress=False)
        return path

    def _evaluated(self, name: str, data: Problem, plan: Any) -> Path:
        path = self.folder / name
        brinell.evaluate(self.model(name), data, Linf(EPS), plan, out=path, progress=False, escalate=False)
        return path

    def model(self, name: str) -> nn.Module:
        """Return the model that a Run is about."""
        return self.models.get(name, self.net)


@dataclass
class Copy:
    """A Run in memory, to be changed: its manifest and its rows, each with its adversarial under the key "x"."""

    manifest: dict[str, Any]
    rows: Rows
    data: Problem
    random: random.Random
    reach: Sequence[float] = ()
    hidden: int = 0
    done: str = ""

    @classmethod
    def of(cls, path: Path, data: Problem, chosen: random.Random, reach: Sequence[float] = ()) -> "Copy":
        """Return the copy of a Run; `reach` are the true distances of the samples."""
        run = Run.open(path)
        rows = run.rows().to_pylist() + [row for row in run.certificates().to_pylist() if not row["broken"]]
        for row in rows:
            row["x"] = None
            if row["adv_shard"] is not None:
                row["x"] = run.shards.adversarials(row["adv_shard"]).x[row["adv_row"]]
        return cls(copy.deepcopy(run.manifest), rows, data, chosen, reach)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity in the manifest."""
        return dict(self.manifest)["identity"]  # type: ignore[no-any-return]

    def broken(self) -> list[int]:
        """Return the samples that an attack broke."""
        return sorted({r["sample_id"] for r in self.rows if r["attack"] != "clean" and r["broken"]})

    def some(self, ids: list[int], most: int = 99) -> list[int]:
        """Return some of the ids, at least one."""
        return sorted(self.random.sample(ids, self.random.randint(1, min(len(ids), most))))

    def wrong(self) -> list[int]:
        """Return the samples that the model misclassifies."""
        return [r["sample_id"] for r in self.rows if r["attack"] == "clean" and r["broken"]]

    def robust(self) -> list[int]:
        """Return the samples that count as robust."""
        return sorted({r["sample_id"] for r in self.rows} - set(self.broken()) - set(self.wrong()))

    def attacks(self, ids: list[int]) -> Iterator[dict[str, Any]]:
        """Yield the rows of attacks on these samples."""
        yield from (r for r in self.rows if r["attack"] != "clean" and r["sample_id"] in ids)

    def hide(self, ids: list[int]) -> None:
        """Turn broken samples into robust ones, in every column, with rows of all attacks."""
        self.hidden += len(ids)
        self.done += f"{len(ids)} hidden "
        template = {r["attack"]: r for r in self.attacks(self.robust())}
        for i in ids:
            for row in [r for r in self.attacks([i]) if r["broken"]]:
                row.update(broken=False, verified=None, verified_8bit=None, adv_pred=None, distance=None, target=None)
                row.update(first_broken_at=None, restart=None, x=None, adv_margin=-1.0)
                row.update({k: template[row["attack"]][k] for k in ("forwards", "backwards")})
            have = {r["attack"] for r in self.attacks([i])}
            clean = next(r for r in self.rows if r["sample_id"] == i)
            main = [s["name"] for s in self.identity["plan"]["stages"] if s.get("share") is None]
            for name in [name for name in main if name not in have]:
                kept = ("sample_id", "x_sha256", "label", "clean_pred", "clean_margin")
                self.rows.append({**template[name], **{k: clean[k] for k in kept}})

    def drop(self, ids: list[int], n: bool = True, fingerprint: bool = True) -> None:
        """Drop samples, with their number and the fingerprint of the data."""
        self.done += f"{len(ids)} samples dropped "
        self.rows = [r for r in self.rows if r["sample_id"] not in ids]
        keep = [k for k, i in enumerate(self.data.ids.tolist()) if i not in ids]
        rest = Problem(self.data.x[keep], self.data.y[keep], self.data.ids[keep])
        if n:
            self.identity["data"]["n"] = len(rest)
        if fingerprint:
            self.identity["data"]["fingerprint"] = rest.fingerprint()

    def stages(self, **values: Any) -> None:
        """Give the attacks of the plan other parameters, and the rows their hashes."""
        for stage in self.identity["plan"]["stages"]:
            stage["attack"].update(values)
            stage["hash"] = attack_hash({k: v for k, v in stage.items() if k != "hash"})
            for row in self.rows:
                if row["attack"] == stage["name"]:
                    row["attack_hash"] = stage["hash"]

    def signature(self) -> str:
        """Return a hash of everything in the copy: two forgeries with the same hash are the same."""
        points = [None if row["x"] is None else row["x"].tobytes() for row in self.rows]
        rows = [{key: value for key, value in row.items() if key != "x"} for row in self.rows]
        return hashlib.sha256(repr((self.manifest, rows, points)).encode()).hexdigest()

    def save(self, path: Path) -> None:
        """Write the Run as one shard, with fresh checksums."""
        shutil.rmtree(path, ignore_errors=True)
        (path / "rows").mkdir(parents=True)
        (path / "adversarials").mkdir()
        stored, ids = [], []
        for row in self.rows:
            x = row.get("x")
            row.update(adv_shard=None if x is None else "00000001-a", adv_row=None if x is None else len(stored))
            if x is not None:
                stored.append(x)
                ids.append(row["sample_id"])
        rows = [{k: v for k, v in row.items() if k != "x"} for row in self.rows]
        files.write_rows(files.rows_file(path, "00000001-a"), pa.Table.from_pylist(rows, schema=ROWS))
        if stored:
            adversarials = files.Adversarials(np.asarray(ids, np.int64), np.stack(stored).astype(np.float32))
            files.write_adversarials(files.adversarials_file(path, "00000001-a"), adversarials)
        manifest = {k: v for k, v in self.manifest.items() if k not in (CHECKSUMS, SEAL)}
        (path / MANIFEST).write_text(json.dumps(manifest))
        reseal(path)


def hidden_samples(c: Copy) -> None:
    """Broken samples become robust, with all that belongs to it."""
    c.hide(c.some(c.broken()))


def one_flag(c: Copy) -> None:
    """Only the flag of broken rows changes."""
    for row in c.attacks(ids := c.some(c.broken())):
        row["broken"] = False
    c.done = f"{len(ids)} flags"


def not_verified(c: Copy) -> None:
    """Adversarials that hold are marked as not verified."""
    for row in c.attacks(ids := c.some(c.broken())):
        row["verified"] = False if row["broken"] else None
    c.done = f"{len(ids)} not verified"


def not_verified_not_stored(c: Copy) -> None:
    """The same, and the adversarials are deleted."""
    not_verified(c)
    gone = {r["sample_id"] for r in c.rows if r["verified"] is False}
    for row in c.rows:
        row["x"] = None if row["verified"] is False else row["x"]
    c.hidden = len(gone)


def distances(c: Copy) -> None:
    """Distances of broken samples grow, with or without exceeding eps."""
    by = c.random.choice((1.0001, 1.01, 1.2, 2.0))
    for row in c.attacks(c.some(c.broken())):
        row["distance"] = row["distance"] * by if row["broken"] else None
    c.done = f"distances times {by}"


def farther_points(c: Copy) -> None:
    """Adversarials and their distances move outside the ball, so that they could be called invalid."""
    for row in c.attacks(c.some(c.broken())):
        if row["x"] is not None:
            x0 = c.data.x[row["sample_id"]].numpy()
            row["x"] = np.clip(x0 + 1.5 * (row["x"] - x0), 0, 1)
            row["distance"] = float(np.abs(row["x"].astype(np.float64) - x0).max())
    c.done = "points moved"


def clean_points(c: Copy) -> None:
    """Adversarials are exchanged for clean inputs or for one another."""
    ids = c.some(c.broken())
    for row in c.attacks(ids):
        if row["x"] is not None:
            row["x"] = c.data.x[c.random.choice((row["sample_id"], c.random.randrange(N)))].numpy()
    c.done = f"{len(ids)} points exchanged"


def rows_dropped(c: Copy) -> None:
    """Rows of attacks on broken samples are dropped."""
    ids = c.some(c.broken())
    c.rows = [r for r in c.rows if r["sample_id"] not in ids or r["attack"] == "clean"]
    c.done = f"rows of {len(ids)} samples dropped"


def samples_dropped(c: Copy) -> None:
    """Broken samples are dropped; n and fingerprint follow, or not."""
    c.drop(c.some(c.broken()), n=c.random.random() < 0.8, fingerprint=c.random.random() < 0.6)


def samples_chosen(c: Copy) -> None:
    """Every broken and every wrong sample is dropped, and the fingerprint of the rest is made anew."""
    c.drop(sorted({*c.some(c.broken()), *c.wrong()}))


def copies_under_new_ids(c: Copy) -> None:
    """Robust samples are repeated under new ids."""
    ids = c.some(c.robust())
    c.rows += [{**r, "sample_id": r["sample_id"] + 1000} for r in c.rows if r["sample_id"] in ids]
    c.identity["data"]["n"] += len(ids)
    c.done = f"{len(ids)} copies"


def copies_in_place(c: Copy) -> None:
    """Rows of a robust sample replace those of a broken one."""
    ids, source = c.some(c.broken()), c.random.choice(c.robust())
    model = [r for r in c.rows if r["sample_id"] == source]
    c.rows = [r for r in c.rows if r["sample_id"] not in ids] + [{**r, "sample_id": i} for i in ids for r in model]
    c.done = f"{len(ids)} replaced"


def larger_eps(c: Copy) -> None:
    """The Run says that its eps was larger."""
    by = c.random.choice((1.2, 1.5, 2, 4))
    c.identity["threat"].update(eps=EPS * by, eps_text=repr(EPS * by))
    c.done, c.hidden = f"eps times {by}", sum(c.reach[i] < EPS * by for i in c.robust())


def other_norm(c: Copy) -> None:
    """The Run says that the norm was another one."""
    norm = c.random.choice(("L2", "L1"))
    c.identity["threat"].update(norm=norm)
    c.done = norm


def small_mask(c: Copy) -> None:
    """A mask explains why nothing breaks."""
    bits = torch.zeros(1, 5, 5, dtype=torch.bool)
    bits[0, 2, c.random.randrange(5)] = True
    c.identity["threat"]["mask"] = Linf(EPS, mask=bits).to_json()["mask"]
    c.done = "mask"


def small_box(c: Copy) -> None:
    """The range of inputs is smaller, or another criterion is claimed."""
    if c.random.random() < 0.5:
        c.identity["threat"]["box"] = [0.0, c.random.choice((0.5, 0.9))]
    else:
        c.identity["goal"] = c.random.choice(("evade", "trip"))
    c.done = "box or goal"


def more_steps(c: Copy) -> None:
    """The named plan is said to have had other numbers."""
    steps = c.random.choice((1, 5, 100, 1000))
    c.stages(steps=steps)
    c.done = f"{steps} steps"


def renamed(c: Copy) -> None:
    """The plan gets a new name, and broken samples are hidden."""
    c.identity["plan"]["name"] = c.random.choice(("autoattack-v2", "AutoAttack", "pgd20 ", "mine", "pgd20, 40 steps"))
    c.hide(c.some(c.broken()))


def known_name(c: Copy) -> None:
    """The plan gets the name of a stronger one."""
    c.identity["plan"]["name"] = c.random.choice(("autoattack", "autoattack-plus", "apgd", "mm+", "minimal"))
    c.done = c.identity["plan"]["name"]


def strength(c: Copy) -> None:
    """A weak plan is called strong, with or without another name and stated passes."""
    c.identity["plan"]["strength"] = c.random.choice(("standard", "audited"))
    if c.random.random() < 0.5:
        c.identity["plan"]["name"] = "mine"
    c.done = c.identity["plan"]["strength"]


def draws(c: Copy) -> None:
    """Several judging passes are claimed, which would excuse wrong clean outcomes."""
    count = c.identity["plan"]["draws"] = c.random.choice((2, 3, 5))
    template = next(r for r in c.attacks(c.robust()))
    judged = c.random.random() < 0.5
    for row in [r for r in c.rows if r["sample_id"] in c.wrong()]:
        row.update(broken=False, verified=None)
        c.rows.append({**template, **{k: row[k] for k in ("sample_id", "x_sha256", "label", "clean_pred")}})
    for row in c.rows if judged else ():
        row.update(judged=[row["broken"]] * count, chosen=None if row["attack"] == "clean" else 0)
    c.done = f"{count} draws{', judged' * judged}"


def clean_rows(c: Copy) -> None:
    """Wrong clean samples become right and robust."""
    template = next(r for r in c.attacks(c.robust()))
    for row in [r for r in c.rows if r["sample_id"] in c.some(c.wrong()) and r["broken"]]:
        row.update(broken=False, verified=None, clean_pred=row["label"], adv_pred=row["label"], clean_margin=-1.0)
        same = ("sample_id", "x_sha256", "label", "clean_pred", "clean_margin")
        c.rows.append({**template, **{k: row[k] for k in same}})
        c.done += "one right "


def labels(c: Copy) -> None:
    """Labels of wrong samples become the predictions."""
    template = next(r for r in c.attacks(c.robust()))
    ids = c.some(c.wrong())
    for row in [r for r in c.rows if r["attack"] == "clean" and r["sample_id"] in ids]:
        row.update(broken=False, verified=None, label=row["clean_pred"], clean_margin=-1.0)
        same = ("sample_id", "x_sha256", "label", "clean_pred", "clean_margin")
        c.rows.append({**template, **{k: row[k] for k in same}})
    c.done = f"{len(ids)} labels"


def ids_exchanged(c: Copy) -> None:
    """Ids of broken and robust samples are exchanged, or broken samples get the ids of others."""
    pairs = dict(zip(c.some(c.broken(), 5), c.random.sample(c.robust(), 5), strict=False))
    swapped = {**pairs, **{b: a for a, b in pairs.items()}}
    for row in c.rows:
        row["sample_id"] = swapped.get(row["sample_id"], row["sample_id"])
    c.done = f"{len(pairs)} pairs"


def costs(c: Copy) -> None:
    """Rows state more passes than were made: a weak plan looks thorough."""
    by = c.random.choice((2, 10, 1000))
    for row in c.attacks(c.robust()):
        row.update(forwards=row["forwards"] * by, backwards=row["backwards"] * by)
    c.done = f"costs times {by}"


def unfinished(c: Copy) -> None:
    """The Run calls itself unfinished, which excuses rows that are missing."""
    c.manifest["finished"] = False
    c.random.choice((rows_dropped, lambda copy: copy.drop(copy.some(copy.broken()), n=False, fingerprint=False)))(c)


def without_images(c: Copy) -> None:
    """Nothing can be checked again, because the adversarials were not kept."""
    c.manifest["images"] = False
    for row in c.rows:
        row["x"] = None
    c.hide(c.some(c.broken()))


def other_seed(c: Copy) -> None:
    """Another seed is stated, and broken samples are hidden."""
    seed = c.identity["seed"] = c.random.randrange(1, 99)
    for row in c.rows:
        row["seed"] = seed
    c.hide(c.some(c.broken()))


def classes(c: Copy) -> None:
    """Another number of classes changes the accuracy of guessing."""
    c.identity["model"]["classes"] = c.random.choice((5, 10, 1000))
    c.done = "classes"


def individual(c: Copy) -> None:
    """Every attack is said to have attacked every sample, or rows of later attacks are made up."""
    c.identity["individual"] = True
    c.hide(c.some(c.broken()))


def parts_dropped(c: Copy) -> None:
    """A part of a merged Run is dropped, or its numbers are changed."""
    sources = c.identity["data"]["sources"]
    first = min(sources, key=lambda s: int(s["n"]))
    if c.random.random() < 0.5:
        c.rows = [r for r in c.rows if r["sample_id"] >= first["n"]]
        c.identity["data"].update(n=N - first["n"], sources=[s for s in sources if s is not first])
    else:
        ids = c.some(c.broken())
        c.drop(ids, fingerprint=False)
        first["n"] -= len(ids)
    c.done += "parts"


def parts_hidden(c: Copy) -> None:
    """Broken samples of a merged Run are hidden."""
    c.hide(c.some(c.broken()))


def audit_rows(c: Copy, everyone: bool = False) -> None:
    """Audited rows are made up for samples that the audit did not draw."""
    names = [s["name"] for s in c.identity["plan"]["stages"] if s.get("share") is not None]
    drawn = {r["sample_id"] for r in c.rows if r["attack"] in names}
    rest = [i for i in c.robust() if i not in drawn]
    template = {r["attack"]: r for r in c.rows if r["attack"] in names and not r["broken"]}
    same = ("sample_id", "x_sha256", "label", "clean_pred", "clean_margin")
    flags = ["audit"] if c.random.random() < 0.5 and not everyone else []
    for i in rest if everyone else c.some(rest, len(rest) - 1):
        clean = next(r for r in c.rows if r["sample_id"] == i)
        c.rows += [{**template[name], **{k: clean[k] for k in same}, "flags": flags} for name in template]
    c.done = "audit rows"


def escalation(c: Copy) -> None:
    """The audit found samples, and rows are made up that say that it attacked all others and broke none."""
    audit_rows(c, everyone=True)
    c.done = "escalation"


def audit_share(c: Copy) -> None:
    """The audit is said to have drawn another share."""
    share = c.random.choice((0.1, 0.25, 0.9, 1.0))
    for entry in c.identity["plan"]["stages"]:
        if entry.get("share") is not None:
            entry["share"] = share
    c.stages()
    c.done = f"share {share}"


def audit_hidden(c: Copy) -> None:
    """What the short plan broke is hidden in a Run with an audit."""
    c.hide(c.some(c.broken()))


def other_attack(c: Copy) -> None:
    """Samples that the audit broke are said to be broken by the short plan: the audit finds nothing."""
    first, last = (entry["name"] for entry in c.identity["plan"]["stages"])
    digest = next(r["attack_hash"] for r in c.rows if r["attack"] == first)
    found = sorted({r["sample_id"] for r in c.rows if r["attack"] == last and r["broken"]})
    ids = c.some(found)
    c.rows = [r for r in c.rows if r["sample_id"] not in ids or r["attack"] != first]
    for row in c.attacks(ids):
        row.update(attack=first, attack_hash=digest, flags=[], forwards=2, backwards=1)
    c.done, c.hidden = f"{len(ids)} broken by another attack", len(ids)


def predictions(c: Copy) -> None:
    """Predicted classes of clean inputs change, which changes the accuracy of guessing."""
    ids = c.some(c.wrong())
    for row in c.rows:
        if row["sample_id"] in ids:
            row["clean_pred"] = next(k for k in (0, 1, 2, 3) if k not in (row["label"], row["clean_pred"]))
    c.done = f"{len(ids)} predictions"


def checks_deleted(c: Copy) -> None:
    """A check that warns is deleted, or softened."""
    if c.random.random() < 0.5:
        c.manifest["checks"] = [k for k in c.manifest["checks"] if k["level"] == "ok"]
    else:
        for check in c.manifest["checks"]:
            check["level"] = "ok"
    c.done = "checks"


def proofs(c: Copy) -> Rows:
    """Return the rows of certificates."""
    return [row for row in c.rows if row["attack"].startswith("certificate:")]


def prove(c: Copy, rows: Rows) -> None:
    """Turn rows of certificates into proofs for the radius of the threat."""
    c.hidden += len({row["sample_id"] for row in rows})
    for row in rows:
        row.update(certified=True, radius=c.identity["threat"]["eps"], bound=0.01, stopped="")
        row.update(broken=False, verified=None, verified_8bit=None, adv_pred=None, distance=None, x=None)


def certificates(c: Copy) -> None:
    """Open samples get certificates."""
    left = [row for row in proofs(c) if not row["certified"]]
    prove(c, c.random.sample(left, c.random.randint(1, len(left))))
    c.done = f"{c.hidden} certificates"


def all_certificates(c: Copy, **settings: Any) -> None:
    """Every open sample gets a certificate, of a call with other settings."""
    prove(c, [row for row in proofs(c) if not row["certified"]])
    (call,) = c.manifest["certifiers"]
    if "certifier" in settings:
        call.clear()
    call.update(settings)
    call["hash"] = attack_hash({key: value for key, value in call.items() if key != "hash"})
    for row in proofs(c):
        row["attack_hash"] = call["hash"]
    c.done = f"{c.hidden} certificates, {settings}"


def unknown_certifier(c: Copy) -> None:
    """The certificates are said to be made by a certifier that nobody else has."""
    all_certificates(c, certifier=c.random.choice(("AlphaBetaCrown", "Mine", "Bounds")))


def hurried(c: Copy) -> None:
    """The time limit is said to have been so short, or so long, that nobody can compute the certificates again."""
    all_certificates(c, seconds=c.random.choice((1e-9, 1e-3, 1e9)))


def other_methods(c: Copy) -> None:
    """The certificates are said to be made by other methods."""
    all_certificates(c, methods=c.random.choice((["interval"], ["smoothing"], ["milp"], ["crown", "crown"], ["abc"])))


def broken_certified(c: Copy) -> None:
    """Broken samples get certificates too."""
    template = proofs(c)[0]
    ids, same = c.some(c.broken()), ("sample_id", "x_sha256", "label", "clean_pred", "clean_margin")
    clean = [row for row in c.rows if row["sample_id"] in ids and row["attack"] == "clean"]
    rows = [{**template, **{key: row[key] for key in same}} for row in clean]
    prove(c, rows)
    c.rows += rows
    c.done = f"{len(ids)} broken samples certified"


def larger_radius(c: Copy) -> None:
    """The Run with all its certificates is said to be for a larger eps."""
    larger_eps(c)
    for row in proofs(c):
        row["radius"] *= c.identity["threat"]["eps"] / EPS
    c.hidden = max(c.hidden, 1)


def far_radius(c: Copy) -> None:
    """Certificates state a larger radius than that of the threat."""
    rows = [row for row in proofs(c) if row["certified"]]
    for row in (chosen := c.random.sample(rows, c.random.randint(1, len(rows)))):
        row["radius"] *= 3
    c.done, c.hidden = f"{len(chosen)} radii times 3", len(chosen)


def open_dropped(c: Copy) -> None:
    """Rows of samples that stayed open are dropped, so that the method seems to certify all it tried."""
    ids = c.some([row["sample_id"] for row in proofs(c) if not row["certified"]])
    c.rows = [row for row in c.rows if row not in proofs(c) or row["sample_id"] not in ids]
    c.done = f"{len(ids)} open samples dropped"


def counterexamples(c: Copy) -> None:
    """Counterexamples that the search found are hidden: their samples are open, or not mentioned."""
    found = [row for row in proofs(c) if row["broken"]]
    chosen = c.random.sample(found, c.random.randint(1, len(found)))
    prove(c, chosen)
    c.done = f"{len(chosen)} counterexamples: "
    how = c.random.choice(("certified", "open", "dropped"))
    for row in chosen:
        if how != "certified":
            row.update(certified=False, radius=0.0, bound=-0.01, stopped="branch-and-bound: the time is up")
    if how == "dropped":
        c.rows = [row for row in c.rows if not any(row is one for one in chosen)]
    c.done += how


def margins_raised(c: Copy) -> None:
    """Samples that the full plan broke near the boundary are said to be far from it, so that nothing attacked them."""
    last = c.identity["plan"]["stages"][-1]["name"]
    fell = [r["sample_id"] for r in c.rows if r["attack"] == last and r["broken"] and "audit" not in r["flags"]]
    ids = c.some(sorted(fell))
    c.rows = [r for r in c.rows if r["sample_id"] not in ids or r["attack"] != last]
    for row in c.attacks(ids):
        row["adv_margin"] = 0.9 * row["clean_margin"]
    c.done, c.hidden = f"{len(ids)} far from the boundary", len(ids)


def near_hidden(c: Copy) -> None:
    """What the full plan broke near the boundary, or an attack through a surrogate, is hidden."""
    c.hide(c.some(c.broken()))


def other_surrogate(c: Copy) -> None:
    """The attack is said to have gone through a surrogate that the model does not have, and in vain."""
    vias = (
        {"through": ["step"]},
        {"networks": ["net", "steps"]},
        {"through": [5]},
        {"networks": ["net"], "columns": 3},
    )
    via = c.random.choice(vias)
    for stage in c.identity["plan"]["stages"]:
        stage["via"] = via
    c.stages()
    c.hide(c.some(c.broken()))
    c.done += str(via)


KINDS: dict[str, tuple[str, Callable[[Copy], None]]] = {
    "certificates made up": ("certified", certificates),
    "unknown certifier": ("certified", unknown_certifier),
    "time of certificates": ("certified", hurried),
    "methods of certificates": ("certified", other_methods),
    "broken samples certified": ("certified", broken_certified),
    "certificates for a larger eps": ("certified", larger_radius),
    "radii of certificates": ("certified", far_radius),
    "open samples dropped": ("certified", open_dropped),
    "counterexamples hidden": ("searched", counterexamples),
    "certificates made up after a search": ("searched", broken_certified),
    "layers: margins raised": ("layered", margins_raised),
    "layers: hidden samples": ("layered", near_hidden),
    "surrogate, hidden samples": ("masked", near_hidden),
    "surrogate that does not fit": ("masked", other_surrogate),
    "broken samples hidden": ("plain", hidden_samples),
    "flag alone": ("plain", one_flag),
    "marked as not verified": ("plain", not_verified),
    "not verified, not stored": ("plain", not_verified_not_stored),
    "distances": ("plain", distances),
    "points moved out of the ball": ("plain", farther_points),
    "points exchanged": ("plain", clean_points),
    "rows dropped": ("plain", rows_dropped),
    "samples dropped": ("plain", samples_dropped),
    "samples chosen": ("plain", samples_chosen),
    "copies under new ids": ("plain", copies_under_new_ids),
    "copies in place of others": ("plain", copies_in_place),
    "larger eps": ("plain", larger_eps),
    "other norm": ("plain", other_norm),
    "mask": ("plain", small_mask),
    "box or criterion": ("plain", small_box),
    "other steps": ("plain", more_steps),
    "renamed plan, hidden samples": ("plain", renamed),
    "name of a stronger plan": ("plain", known_name),
    "strength": ("plain", strength),
    "judging passes": ("plain", draws),
    "clean rows": ("plain", clean_rows),
    "labels": ("plain", labels),
    "ids exchanged": ("plain", ids_exchanged),
    "costs": ("plain", costs),
    "unfinished": ("plain", unfinished),
    "without images": ("plain", without_images),
    "other seed, hidden samples": ("plain", other_seed),
    "number of classes": ("plain", classes),
    "individual": ("plain", individual),
    "merged parts dropped": ("merged", parts_dropped),
    "merged parts, hidden samples": ("merged", parts_hidden),
    "audit rows made up": ("audited", audit_rows),
    "escalation made up": ("audited", escalation),
    "share of the audit": ("audited", audit_share),
    "audit, hidden samples": ("audited", audit_hidden),
    "another attack named": ("audited", other_attack),
    "predicted classes": ("plain", predictions),
    "checks deleted": ("scaled", checks_deleted),
}
"""What is forged, in which honest Run."""


@dataclass(frozen=True)
class Forgery:
    """One forgery: what was done, the numbers before and after, the levels that noticed it."""

    kind: str
    done: str
    before: str
    after: str
    hidden: int
    found: int
    noticed: tuple[str, ...]
    thorough: bool

    @property
    def held(self) -> bool:
        """Whether it was noticed, or hides so little that the stated probability allows it."""
        return "verify with model" in self.noticed or (self.hidden < self.found and self.thorough)


def notices(check: Callable[[], Any]) -> bool:
    """Return whether a check raises an error of Brinell or reports a fault."""
    try:
        return not check()
    except BrinellError:
        return True


def edited(world: World, kind: str, chosen: random.Random, seen: set[str]) -> Copy | None:
    """Return a forgery of this kind that was not made before; None if chance gives no other."""
    name, change = KINDS[kind]
    for _ in range(20):
        made = Copy.of(world.run(name), world.data, chosen, world.reach)
        change(made)
        if made.signature() not in seen:
            seen.add(made.signature())
            return made
    return None


def forge(world: World, kind: str, made: Copy, path: Path, seed: int) -> Forgery:
    """Store a forgery and check it on every level."""
    name = KINDS[kind][0]
    source = Run.open(world.run(name))
    made.save(path)
    after = "refused"
    if not notices(lambda: str(Run.open(path))):
        forged = Run.open(path)
        after = shown(forged)
    model, data = world.model(name), world.data

    def bundle() -> bool:
        pack(Run.open(path), path.with_suffix(".zip"))
        return brinell.review([path.with_suffix(".zip")], model, data, seed=seed).ok

    checks: dict[str, Callable[[], Any]] = {
        "open": lambda: str(Run.open(path)),
        "verify": lambda: brinell.verify(path).ok,
        "verify with model": lambda: brinell.verify(path, model, data, seed=seed).ok,
        "bundle": bundle,
    }
    noticed = tuple(level for level, check in checks.items() if notices(check))
    missed = "verify with model" not in noticed
    thorough = not missed or notices(
        lambda: brinell.verify(path, model, data, hidden=1, confidence=1 - 1e-9, seed=seed).ok
    )
    found = 1 if after == "refused" else _half(Run.open(path))
    return Forgery(kind, made.done.strip(), shown(source), after, made.hidden, found, noticed, thorough)


def _half(run: Run) -> int:
    """Return how many hidden samples, or false certificates, the default of `verify` states to find."""
    return min(half_interval(p) for p in (run.robust_accuracy, run.certified_accuracy) if p is not None)


def shown(run: Run) -> str:
    """Return what a Run prints and a forger may want to change."""
    p, identity = run.robust_accuracy, run.identity
    table = run.rows().filter(pa.array(counted(run.rows())))
    distance = np.mean([d for d in table["distance"].to_pylist() if d] or [0])
    parts = [f"{100 * p.value:.1f} % of {p.n} (clean {100 * run.clean_accuracy.value:.1f} %)"]
    parts += [f"{identity.threat.norm} {identity.threat.eps:.4g}{' with a mask' * (identity.threat.mask is not None)}"]
    parts += [f"box {identity.threat.box}, {identity.criterion}, {identity.model.classes} classes"]
    parts += [f"{identity.plan.name} ({identity.plan.strength}), {run.cost.forwards} forwards"]
    parts += (
        [] if run.bracket is None else [f"{run.bracket}, {len(run.certified_radii())} radii, {run.bracket.lines[1]}"]
    )
    parts += [f"mean distance {distance:.4g}", *([f"audit bound {run.audit.missed}"] if run.audit else [])]
    return "; ".join([*parts, f"{run.verdict.level} ({len(run.verdict.reasons)} reasons)"])


def forgeries(seed: int, count: int) -> list[Forgery]:
    """Make `count` forgeries, chosen by the seed; the same seed gives the same forgeries and samples to run again."""
    chosen, made = random.Random(seed), []
    kinds = list(KINDS)
    with tempfile.TemporaryDirectory(prefix="brinell-forge-") as folder:
        torch.manual_seed(seed)
        world = World(Path(folder))
        for name in RUNS:
            refuse_faulty(world, Path(folder), name)
        seen: set[str] = set()
        for k in range(10 * count):
            kind = kinds[k % len(kinds)]
            if len(made) < count and (forgery := edited(world, kind, chosen, seen)) is not None:
                made.append(forge(world, kind, forgery, Path(folder) / f"forged{k}", seed + k))
    return made


def refuse_faulty(world: World, folder: Path, name: str) -> None:
    """Raise an AssertionError unless an unchanged copy of an honest Run passes every level."""
    place = folder / f"honest-{name}"
    Copy.of(world.run(name), world.data, random.Random(0)).save(place)
    pack(Run.open(place), place.with_suffix(".zip"))
    model, data = world.model(name), world.data
    for found in (brinell.verify(place), brinell.verify(place, model, data, seed=0)):
        assert found.ok, f"honest Run {name}: {found}"
    reviewed = brinell.review([place.with_suffix(".zip")], model, data, seed=0)
    assert reviewed.ok, f"honest bundle {name}: {reviewed}"


def run(seed: int = 0, count: int = 212) -> list[Outcome]:
    """Make `count` forgeries, chosen by the seed; return for each kind how many were tried and how many held."""
    return outcomes(forgeries(seed, count))


def outcomes(made: list[Forgery]) -> list[Outcome]:
    """Return the outcomes by kind."""
    table = []
    for kind in KINDS:
        these = [f for f in made if f.kind == kind]
        missed = tuple(f"{kind}, {f.done}: {f.before} became {f.after}" for f in these if not f.held)
        if these:
            table.append(Outcome(kind, len(these), len(these) - len(missed), missed))
    return table


def markdown(made: list[Forgery], seed: int) -> str:
    """Return the table of forgeries by kind and level."""
    head = ("forgery", "tried", *LEVELS, "within the stated probability", "missed")
    lines = [
        "# Forged Runs",
        "",
        f"`python benchmarks/fortress_forge.py --seed {seed} --count {len(made)}`: {len(made)} forgeries of honest",
        f"Runs ({N} samples, a linear model). The columns say how many each level notices. What the default of",
        "`brinell verify` misses hides fewer samples than it states to find, and attacking all survivors finds it.",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    for kind in [*KINDS, ""]:
        these = [f for f in made if f.kind == kind or not kind]
        if not these:
            continue
        counts = [sum(level in f.noticed for f in these) for level in LEVELS]
        within = sum(f.held and "verify with model" not in f.noticed for f in these)
        cells = [kind or "all", len(these), *counts, within, sum(not f.held for f in these)]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", "## Every forgery", "", "| forgery | done | before | after | noticed by |", "|---|---|---|---|---|"]
    for f in made:
        by = ", ".join(f.noticed) or ("attacking all survivors" if f.thorough else "nothing")
        lines.append(f"| {f.kind} | {f.done} | {f.before} | {f.after} | {by} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the table; write it with --out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=212)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for fortress_forge.md and fortress_forge.json")
    given = parser.parse_args()
    made = forgeries(given.seed, given.count)
    text = markdown(made, given.seed)
    print(text)
    if given.out is not None:
        (given.out / "fortress_forge.md").write_text(text)
        stored = {"seed": given.seed, "forgeries": [{**vars(f), "held": f.held} for f in made]}
        (given.out / "fortress_forge.json").write_text(json.dumps(stored, indent=1) + "\n")


if __name__ == "__main__":
    main()
