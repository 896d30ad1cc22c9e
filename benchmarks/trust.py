"""Can the verdict be believed? Broken defences and sound networks, many draws of samples each, default options.

Usage: python benchmarks/trust.py [--only NAME …] [--kind broken|sound] [--draws 10] [--n 100] [--plan fast]
       [--adaptive] [--store FOLDER] [--out benchmarks/results] [--list] [--table]

Every draw of every model is one JSON file in the store, and a draw that is there is not run again: interrupt it at any
time. `--before` makes the cheapest draws: only the checks that an evaluation makes before its attack. What they object
to cannot become *reliable*, whatever the attack does: with `--short` such draws of broken defences are not run further.
`--checks` makes cheap draws: the attack of `fast` without its layers of evidence (audit=0), so that only the checks can
object. Use a new store after a change of the package. The truth of a defence is the lowest robust accuracy
that any attack reached: `fast` on the network without the trick, with every point verified on the defence, and
whatever the draws themselves found. `--table` only writes trust.md and trust.json from the store.
"""

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from trust_models import Entry, broken, sound

import brinell
from brinell.core.dataset import Problem
from brinell.core.execution import Execution
from brinell.engine import precision as precisions
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.ops import rng
from brinell.results.verdict import VERDICT_LEVELS

# A broken defence must not be reliable by more than this above the truth; `--adaptive` should come this close.
ABOVE, CLOSE = 0.02, 0.03
# Points for models that count on the 8-bit grid keep this distance from the edge of the ball, to be rounded.
HALF_LEVEL = 0.5 / 255
PASSES = 20
# Findings about the number of samples and about how far the full plan went.
AUDIT, TOO_FEW = "audit", "too few samples"
REFUSED = "refused"
# Of the checks before the attack: none of them objects.
OPEN = "open"
# Behind numbers of an earlier version.
EARLIER = " ¹"
# Kinds of draws, by the end of the name of their folder, with their options.
DEFAULT, ADAPTIVE, CHECKS, BEFORE = "", "-adaptive", "-checks", "-before"
KINDS: dict[str, dict[str, Any]] = {DEFAULT: {}, ADAPTIVE: {"adaptive": True}, CHECKS: {"audit": 0}}


def slug(name: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in name)


def drawn(problem: Problem, draw: int, n: int) -> Problem:
    """A draw of n samples, or all if there are fewer; the ids are those of the whole problem."""
    order = rng.bits(rng.keys(1000, torch.tensor([draw])), len(problem))[0].argsort()[:n].sort().values
    return Problem(problem.x[order], problem.y[order], ids=problem.ids[order], name=problem.name)


# ---------------------------------------------------------------- truth


def fooled(entry: Entry, x: Tensor, y: Tensor) -> Tensor:
    """Whether each point fools the defence: in a fresh pass, or in most passes if it is randomised."""
    model = coerce.as_classifier(entry.build(), None)
    with torch.no_grad():
        parts = x.split(1 if entry.alone else len(x))
        passes = [
            torch.cat([model.forward(part).logits.argmax(1) for part in parts]) != y
            for _ in range(PASSES if entry.randomised else 1)
        ]
    return 2 * torch.stack(passes).sum(0) > len(passes)


def adversarials(name: str, entry: Entry, build: Any, problem: Problem, store: Path) -> tuple[np.ndarray, np.ndarray]:
    """Ids and adversarials of an attack on a surrogate; every sample is attacked once and kept in the store.

    The attack is that of `fast`, without its layers of evidence.
    """
    eps = entry.smaller * entry.threat.eps - HALF_LEVEL * entry.on_grid
    threat = entry.threat if eps == entry.threat.eps else replace(entry.threat, eps=eps, text=f"{eps:.6g}")
    file = store / "truth" / f"{slug(name)}-{slug(str(threat))}.npz"
    stored = dict(np.load(file)) if file.exists() else {"ids": np.zeros(0, np.int64), "tried": np.zeros(0, np.int64)}
    new = ~torch.isin(problem.ids, torch.from_numpy(stored["tried"]))
    if bool(new.any()):
        part = Problem(problem.x[new], problem.y[new], ids=problem.ids[new], name=problem.name)
        options: dict[str, Any] = {"audit": 0, "test": False, "progress": False}
        with tempfile.TemporaryDirectory() as folder:
            found = brinell.evaluate(build(), part, threat, "fast", out=Path(folder) / "r", **options).adversarials()
        stored["tried"] = np.concatenate([stored["tried"], part.ids.numpy()])
        if len(found.ids):
            stored["x"] = np.concatenate([stored["x"], found.x]) if "x" in stored else found.x
            stored["ids"] = np.concatenate([stored["ids"], found.ids])
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, **stored)
    keep = np.isin(stored["ids"], problem.ids.numpy())
    return stored["ids"][keep], stored["x"][keep] if "x" in stored else np.zeros(0, np.float32)


def known_broken(entry: Entry, drawn_ids: set[int], store: Path) -> set[int]:
    """Ids among these that an attack with knowledge of the trick breaks, each verified on the defence."""
    whole = entry.data()
    keep = torch.tensor([i in drawn_ids for i in whole.ids.tolist()])
    problem = Problem(whole.x[keep], whole.y[keep], ids=whole.ids[keep], name=whole.name)
    ids = set(problem.ids[fooled(entry, problem.x, problem.y)].tolist())
    label = dict(zip(problem.ids.tolist(), problem.y.tolist(), strict=True))
    for name, build in entry.surrogates:
        at, points = adversarials(name, entry, build, problem, store)
        if not len(at):
            continue
        x = torch.from_numpy(points)
        x = (x * 255).round() / 255 if entry.on_grid else x
        y = torch.tensor([label[i] for i in at.tolist()])
        ids |= {i for i, hit in zip(at.tolist(), fooled(entry, x, y).tolist(), strict=True) if hit}
    return ids


# ---------------------------------------------------------------- draws


def settled(run: brinell.Run) -> bool:
    """Whether something other than the layers of evidence makes the verdict suspicious; more attacks do not help."""
    return any(f.level in ("warn", "fail") and f.name not in (AUDIT, TOO_FEW) for f in run.verdict.findings)


def measure(entry: Entry, draw: int, n: int, plan: str, kind: str, short: bool) -> dict[str, Any]:
    """Evaluate one draw. With `short` the full plan attacks all survivors only where that can change the verdict."""
    problem, begun = drawn(entry.data(), draw, n), time.perf_counter()
    out: dict[str, Any] = {"name": entry.name, "draw": draw, "n": len(problem), "ids": problem.ids.tolist()}
    options: dict[str, Any] = {"seed": draw, "progress": False} | KINDS[kind]
    try:
        with tempfile.TemporaryDirectory() as folder:
            options["out"] = Path(folder) / "run"
            if short:
                run = brinell.evaluate(entry.build(), problem, entry.threat, plan, escalate=False, **options)
                options["resume"] = True
            if not short or not settled(run):
                run = brinell.evaluate(entry.build(), problem, entry.threat, plan, **options)
            cost, verdict = run.cost, run.verdict
            return out | {
                "verdict": verdict.level,
                "findings": [f"{f.name}: {f.message}" for f in verdict.findings],
                "clean": run.clean_accuracy.k,
                "robust": run.robust_accuracy.k,
                "survivors": run.survivors().tolist(),
                "forwards": cost.forwards,
                "backwards": cost.backwards,
                "seconds": time.perf_counter() - begun,
            }
    except brinell.BrinellError as error:
        return out | {"verdict": REFUSED, "findings": [str(error)], "seconds": time.perf_counter() - begun}


def look(entry: Entry, draw: int, n: int, plan: str) -> dict[str, Any]:
    """Make the checks of an evaluation that come before its attack, and nothing else."""
    problem, begun = drawn(entry.data(), draw, n), time.perf_counter()
    out: dict[str, Any] = {"name": entry.name, "draw": draw, "n": len(problem), "ids": problem.ids.tolist()}
    model, how = coerce.as_classifier(entry.build(), None), Execution(seed=draw)
    try:
        with precisions.exact(model.device):
            checks = prepare(model, problem, entry.threat, coerce.as_plan(plan), how).checks
    except brinell.BrinellError as error:
        return out | {"verdict": REFUSED, "findings": [str(error)], "seconds": time.perf_counter() - begun}
    wrong = [f"{c.name}: {c.message}" for c in checks if c.level in ("warn", "fail")]
    verdict = "suspicious" if wrong else OPEN
    return out | {"verdict": verdict, "findings": wrong, "seconds": time.perf_counter() - begun}


def run_draws(entry: Entry, args: argparse.Namespace, kind: str) -> None:
    for draw in range(args.first, args.draws):
        file = draw_file(args, entry.name, kind, draw)
        if file.exists() or (args.short and entry.broken and draw in settled_draws(args, entry.name, kind)):
            continue
        plan = plan_of(args, kind)
        if kind == BEFORE:
            result = look(entry, draw, args.n, plan)
        else:
            result = measure(entry, draw, args.n, plan, kind, args.short and plan == "fast" and kind != CHECKS)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_suffix(".part").write_text(json.dumps(result))
        file.with_suffix(".part").replace(file)
        share = "" if "robust" not in result else f"{result['robust']} of {result['n']}"
        print(f"{entry.name}, draw {draw}{kind}: {result['verdict']} {share}", flush=True)


def plan_of(args: argparse.Namespace, kind: str) -> str:
    return str(args.adaptive_plan or args.plan if kind == ADAPTIVE else args.plan)


def draw_file(args: argparse.Namespace, name: str, kind: str, draw: int) -> Path:
    return Path(args.store) / f"{plan_of(args, kind)}{kind}" / f"{slug(name)}.{draw}.json"


def settled_draws(args: argparse.Namespace, name: str, kind: str) -> dict[int, dict[str, Any]]:
    """The draws to which cheaper draws than those of this kind object: of those after the attack, then before it."""
    cheaper = {DEFAULT: [CHECKS, BEFORE], CHECKS: [BEFORE]}.get(kind, [])
    return {d["draw"]: d | {"by": k} for k in cheaper for d in stored_draws(args, name, k) if alarms([d])}


def stored_draws(args: argparse.Namespace, name: str, kind: str) -> list[dict[str, Any]]:
    files = [draw_file(args, name, kind, draw) for draw in range(args.draws)]
    return [json.loads(f.read_text()) for f in files if f.exists()]


# ---------------------------------------------------------------- table


def summary(entry: Entry, args: argparse.Namespace) -> dict[str, Any] | None:
    plain, adaptive, checks = (stored_draws(args, entry.name, kind) for kind in KINDS)
    before = stored_draws(args, entry.name, BEFORE)
    if not plain and not adaptive and not checks and not before:
        return None
    if args.short and entry.broken:
        run = {d["draw"] for d in plain}
        plain += [d for draw, d in settled_draws(args, entry.name, DEFAULT).items() if draw not in run]
    finished = [d for d in plain + adaptive + checks if "robust" in d]
    # The truth takes longest, and says nothing about a draw that is not called reliable.
    ids = {i for d in (*(d for d in plain if d["verdict"] == "reliable"), *adaptive) for i in d["ids"]}
    asked = entry.broken and bool(ids)
    known = known_broken(entry, ids, Path(args.store)) if asked else set()
    if entry.broken and not entry.randomised:
        known |= {i for d in finished for i in set(d["ids"]) - set(d["survivors"])}
    out: dict[str, Any] = {"name": entry.name, "broken": entry.broken, "threat": str(entry.threat)}
    for kind, draws in (("default", plain), ("adaptive", adaptive), ("checks", checks), ("before", before)):
        rows = []
        for d in draws:
            row = {k: d[k] for k in ("draw", "n", "verdict", "findings")} | {"by": d.get("by", kind)}
            if row["by"] in (BEFORE, "before"):
                row["findings"] = [f.split(":")[0] for f in d["findings"]]
            if asked and set(d["ids"]) <= ids:
                row["truth"] = len(set(d["ids"]) - known)
            if "robust" in d:
                row |= {"robust": d["robust"], "passes": d["forwards"] + d["backwards"]}
            rows.append(row)
        out[kind] = rows
    if not adaptive and args.earlier:
        out["adaptive"] = earlier_rows(args.earlier, entry.name)
    return out


@cache
def earlier_results(file: str) -> dict[str, list[dict[str, Any]]]:
    return {e["name"]: e["adaptive"] for e in json.loads(Path(file).read_text())}


def earlier_rows(file: str, name: str) -> list[dict[str, Any]]:
    """The adaptive draws of an earlier version."""
    return [r | {"by": "earlier"} for r in earlier_results(file).get(name, [])]


def gap(row: dict[str, Any]) -> float:
    return (row["robust"] - row["truth"]) / row["n"]


def deceived(entry: dict[str, Any]) -> int:
    return sum(r["verdict"] == "reliable" and gap(r) > ABOVE for r in entry["default"])


def alarms(rows: list[dict[str, Any]]) -> int:
    """The number of draws with a sign of trouble; an upper bound is none."""
    return sum(r["verdict"] not in ("reliable", "upper bound", OPEN) for r in rows)


def mean(values: list[float]) -> float:
    return sum(values) / max(len(values), 1)


def percent(rows: list[dict[str, Any]], key: str) -> str:
    values = [100 * r[key] / r["n"] for r in rows if key in r]
    return f"{mean(values):.1f}" if values else "–"


def verdicts(rows: list[dict[str, Any]]) -> str:
    counts = {v: sum(r["verdict"] == v for r in rows) for v in (*VERDICT_LEVELS, REFUSED)}
    return ", ".join(f"{c} {v}" for v, c in counts.items() if c) or "–"


def is_close(entry: dict[str, Any]) -> bool:
    """Whether the adaptive evaluation came within 3 points of the truth, in the mean over its draws."""
    rows = [r for r in entry["adaptive"] if "robust" in r]
    return bool(rows) and mean([gap(r) for r in rows]) <= CLOSE


def reasons(rows: list[dict[str, Any]]) -> str:
    names = [f.split(":")[0] if r["verdict"] != REFUSED else REFUSED for r in rows for f in r["findings"]]
    return ", ".join(dict.fromkeys(names)) or "–"


def objections(rows: list[dict[str, Any]]) -> str:
    """How many of the draws the checks object to."""
    return f"{alarms(rows)} of {len(rows)}" if rows else "–"


def total(entries: list[dict[str, Any]], kind: str) -> str:
    return objections([r for e in entries for r in e[kind]])


def settled_by(rows: list[dict[str, Any]]) -> list[str]:
    """The number of draws, and how many of them ended before the attack, after it alone, and in full."""
    return [str(len(rows)), *(str(sum(r["by"] == kind for r in rows)) for kind in (BEFORE, CHECKS, "default"))]


def broken_line(e: dict[str, Any]) -> str:
    rows, tried = e["default"], e["adaptive"]
    full = [r for r in rows if r["by"] == "default"]
    passes = mean([r["passes"] for r in full if "passes" in r])
    more = mean([r["passes"] for r in tried if "passes" in r])
    cells = [
        e["name"], e["threat"], *settled_by(rows), percent(full + tried, "truth"), percent(full, "robust"),
        verdicts(rows), str(deceived(e)), reasons(rows), f"{passes:,.0f}" if passes else "–",
        percent(tried, "robust") + EARLIER * any(r.get("by") == "earlier" for r in tried),
        "–" if not tried else "yes" if is_close(e) else "no", f"{more:,.0f}" if tried else "–",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def sound_line(e: dict[str, Any]) -> str:
    rows, tried = e["default"], e["adaptive"]
    passes = mean([r["passes"] for r in rows if "passes" in r])
    cells = [
        e["name"], e["threat"], str(len(rows)), percent(rows, "robust"), verdicts(rows), str(alarms(rows)),
        reasons(rows), objections(e["before"]), objections(e["checks"]), f"{passes:,.0f}" if passes else "–",
        percent(tried, "robust"), verdicts(tried),
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


BROKEN = [
    "defence", "threat", "draws", "before the attack", "after the attack alone", "in full", "truth, %", "robust, %",
    "verdicts", "reliable and more than 2 points too high", "findings", "passes", "adaptive, %", "within 3 points",
    "passes, adaptive",
]  # fmt: skip
SOUND = [
    "network", "threat", "draws", "robust, %", "verdicts", "alarms", "findings", "checks before the attack object",
    "checks after it object", "passes",
    "adaptive, %", "verdicts, adaptive",
]  # fmt: skip


def report(entries: list[dict[str, Any]], args: argparse.Namespace) -> str:
    bad, good = [e for e in entries if e["broken"]], [e for e in entries if not e["broken"]]
    draws = [r for e in bad for r in e["default"]]
    wrong, tried = sum(map(deceived, bad)), [e for e in bad if e["adaptive"]]
    calm = [r for e in good for r in e["default"]]
    quiet = sum(r["verdict"] == "upper bound" for r in calm)
    return "\n".join(
        [
            "# Can the verdict be believed?",
            "",
            f"`python benchmarks/trust.py`, plan `{args.plan}` with default options, draws of {args.n} of 300 samples "
            f"(fewer where the data have fewer), one thread, torch {torch.__version__}, {platform.machine()}. Means "
            "over the draws. "
            + "A draw of a broken defence ends as soon as something makes it suspicious: before the attack; after the "
            "attack without layers of evidence (audit=0); or in full. "
            * args.short
            + "The truth is given where a draw is reliable or the evaluation was adaptive. Passes are forward plus "
            "backward passes per draw."
            + (f" The adaptive evaluation extends the plan `{args.adaptive_plan}`." if args.adaptive_plan else "")
            + " ¹ Measured with an earlier version." * bool(args.earlier),
            "",
            f"**Broken defences ({len(bad)}).** Reliable and more than 2 points above the truth: {wrong} of "
            f"{len(draws)} draws. The adaptive evaluation comes within 3 points of the truth for "
            f"{sum(map(is_close, tried))} of {len(tried)}.",
            "",
            f"**Checks before the attack**, which no attack can overrule, object to {total(bad, 'before')} draws of "
            f"broken defences and to {total(good, 'before')} of sound networks. **Checks after the attack alone** "
            f"(audit=0) object to {total(good, 'checks')} draws of sound networks.",
            "",
            f"**Sound networks ({len(good)}).** Suspicious, invalid or refused: {alarms(calm)} of {len(calm)} draws; "
            f"upper bound: {quiet}.",
            "",
            f"| {' | '.join(BROKEN)} |",
            f"|{'---|' * len(BROKEN)}",
            *map(broken_line, bad),
            "",
            f"| {' | '.join(SOUND)} |",
            f"|{'---|' * len(SOUND)}",
            *map(sound_line, good),
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--kind", choices=["broken", "sound"])
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="the first draw")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--plan", default="fast")
    parser.add_argument(
        "--short",
        action="store_true",
        help="no default draw of a broken defence where the checks before the attack object already",
    )
    parser.add_argument("--adaptive-plan", default="", help="another plan for the adaptive evaluation, such as pgd20")
    parser.add_argument("--adaptive", action="store_true", help="run the adaptive evaluation, beside the default one")
    parser.add_argument("--only-adaptive", action="store_true", help="run the adaptive evaluation alone")
    parser.add_argument("--checks", action="store_true", help="run cheap draws alone, without the layers of evidence")
    parser.add_argument("--before", action="store_true", help="make only the checks before the attack")
    parser.add_argument("--store", default="runs/trust", help="folder of the draws, the truths and trained networks")
    parser.add_argument("--out", default="", help="folder for trust.md and trust.json")
    parser.add_argument("--earlier", default="", help="a trust.json, for adaptive draws that the store lacks")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--table", action="store_true", help="run nothing")
    parser.add_argument("--no-table", action="store_true", help="only run the draws, without the truths")
    args = parser.parse_args()
    entries = [*broken(), *sound(Path(args.store) / "networks")]
    if args.kind:
        entries = [e for e in entries if e.broken == (args.kind == "broken")]
    if args.only:
        entries = [e for e in entries if e.name in args.only]
    if args.list:
        print("\n".join(f"{'broken' if e.broken else 'sound'}  {e.name}  {e.threat}" for e in entries))
        return
    if not args.table:
        for e in entries:
            plain = [DEFAULT] * (not args.only_adaptive)
            kinds = plain + [ADAPTIVE] * (args.adaptive or args.only_adaptive)
            for kind in [BEFORE] if args.before else [CHECKS] if args.checks else kinds:
                run_draws(e, args, kind)
    if args.no_table:
        return
    results = [s for e in entries if (s := summary(e, args)) is not None]
    text = report(results, args)
    print(text)
    if args.out:
        Path(args.out, "trust.md").write_text(text)
        Path(args.out, "trust.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
