"""What an evaluation was expected to cost, and what it then cost: passes, seconds on the clock, processor seconds.

Run: python benchmarks/estimate.py [NAME ...]. Writes benchmarks/results/estimate.json and estimate.md; cases named on
the command line are measured again, the others kept. One case (golden) needs the weights in BRINELL_SHARED.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import networks
import torch
from torch import Tensor, nn

import brinell
from brinell import Linf, Plan, Problem, Restarts, Targets
from brinell.attacks import APGD, FGSM, PGD, Square
from brinell.core.execution import Execution
from brinell.core.threat import Threat
from brinell.cost.estimate import remaining_work
from brinell.cost.extrapolate import predict
from brinell.engine import precision
from brinell.evaluation import coerce
from brinell.evaluation.prepare import prepare
from brinell.models.demo import demo_net

RESULTS = Path(__file__).parent / "results"
SHARED = Path(os.environ.get("BRINELL_SHARED", Path(__file__).resolve().parents[2] / "shared"))
BOUND = 1.5


class Noisy(nn.Module):
    """The demonstration model behind noise of its own at every pass."""

    def __init__(self, deviation: float = 0.05) -> None:
        super().__init__()
        self.net, self.deviation = demo_net(), deviation

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x + self.deviation * torch.randn_like(x))


@dataclass(frozen=True)
class Case:
    """An evaluation: model, data, threat, plan and options."""

    name: str
    text: str
    model: Callable[[], Any]
    n: int
    threat: Threat
    plan: Any
    options: dict[str, Any]


def demo_data(n: int) -> Problem:
    return brinell.data.load("demo", n)


def golden() -> nn.Module:
    return networks.load_fashion(str(SHARED / "golden" / "fashion_net.npz"))


def resnet() -> nn.Module:
    torch.manual_seed(0)
    return networks.PreActResNet18().eval().requires_grad_(False)


def own_labels(net: nn.Module, n: int) -> Problem:
    """Images of noise with the labels the network gives them."""
    x = torch.rand(n, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return Problem(x, net(x).argmax(1))


RAND = Plan("rand", (brinell.Eot(APGD(20), 4), brinell.Eot(Square(steps=60), 4)), draws=5)
RANKED = [Restarts(PGD(10), 3), Targets(APGD(15, "minimum-margin"), k=3, ranked_by=FGSM())]
CASES = [
    Case("fgsm", "demo, `fgsm`", lambda: "demo", 1000, Linf(0.1), "fgsm", {}),
    Case("pgd20", "demo, `pgd20`", lambda: "demo", 400, Linf(0.1), "pgd20", {}),
    Case("pgd20-individual", "demo, two PGD, every attack on every sample", lambda: "demo", 200, Linf(0.1),
         [PGD(20), APGD(20, "dlr")], {"individual": True}),
    Case("mm9", "demo, `mm9`", lambda: "demo", 200, Linf(0.1), "mm9", {}),
    Case("weak", "demo, `mm9` where most samples break", lambda: "demo", 200, Linf(0.25), "mm9", {}),
    Case("restarts", "demo, three restarts, then ranked targets", lambda: "demo", 200, Linf(0.1), RANKED, {}),
    Case("fast-only", "demo, `fast` without its audit", lambda: "demo", 500, Linf(0.1), "fast", {"audit": 0}),
    Case("fast", "demo, `fast` with its audit", lambda: "demo", 100, Linf(0.1), "fast", {}),
    Case("autoattack", "demo, `autoattack`", lambda: "demo", 24, Linf(0.1), "autoattack", {}),
    Case("square", "demo, `square`", lambda: "demo", 40, Linf(0.1), "square", {}),
    Case("apgd-l2", "demo, `apgd` in L2", lambda: "demo", 80, brinell.L2(1.5), "apgd", {}),
    Case("l1", "demo, APGD in L1", lambda: "demo", 64, brinell.L1(12), APGD(30, larger_eps=True), {}),
    Case("randomised", "noisy demo, means over 4 passes, judged on 5", lambda: Noisy().eval(), 96, Linf(0.1), RAND, {}),
    Case("resnet", "PreAct-ResNet-18 with random weights, PGD", resnet, 48, Linf(0.01), PGD(5), {}),
    Case("golden", "the golden numbers' small network, `mm3`", golden, 500, Linf(0.1), "mm3", {}),
]  # fmt: skip


def probed(model: Any, data: Problem, case: Case, clock: Callable[[], float]) -> Any:
    """The estimate by a clock of one's own."""
    options = dict(case.options)
    plan = coerce.as_plan(case.plan, audit=options.pop("audit", None))
    clf = coerce.as_classifier(model)
    with precision.exact(clf.device):
        prepared = prepare(clf, data, case.threat, plan, Execution(), **options)
        return predict(remaining_work(prepared, None, False), clock=clock)


def measure(case: Case) -> dict[str, Any]:
    model = case.model()
    data = own_labels(model, case.n) if case.name == "resnet" else demo_data(case.n)
    begun = time.perf_counter()
    by_clock = probed(model, data, case, time.perf_counter)
    asked = time.perf_counter() - begun
    by_processor = probed(model, data, case, time.process_time)
    spent = time.process_time()
    run = brinell.evaluate(model, data, case.threat, case.plan, progress=False, **case.options)
    spent = time.process_time() - spent
    return {
        "name": case.name,
        "text": case.text,
        "n": case.n,
        "probe": by_clock.probe_seconds,
        "asked": asked,
        "forwards": [by_clock.forwards, run.cost.forwards],
        "backwards": [by_clock.backwards, run.cost.backwards],
        "range": [by_clock.low, by_clock.high],
        "clock": [by_clock.seconds, run.manifest["wall_seconds"]],
        "processor": [by_processor.seconds, spent],
        "stages": [asdict(s) for s in by_clock.stages],
    }


def ratio(pair: list[float]) -> str:
    told, true = pair
    return "–" if not true else f"{told / true:.2f}"


def off(pair: list[float]) -> float:
    """How far apart, as a factor of at least 1."""
    told, true = pair
    return 1.0 if not true else max(told / true, true / max(told, 1e-9))


def page(rows: list[dict[str, Any]]) -> str:
    worst = {k: max(off(r[k]) for r in rows) for k in ("forwards", "backwards", "clock", "processor")}
    lines = [
        "# Cost before the run: expected and actual",
        "",
        f"`python benchmarks/estimate.py`; torch {torch.__version__}, one thread, block of 32 rows, Linf unless said. "
        "A ratio is expected / actual. Passes are those counted in the rows. The clock is that of a machine that "
        "others used at the same time, so the probe and the run may each have had another share of it; processor time "
        "is this process's alone, with a probe timed by it. Cases were measured one by one, some again after a change, "
        "each with its last measurement.",
        "",
        "| evaluation | n | probe | forwards | ratio | backwards | ratio | clock | ratio | processor | ratio |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        cells = [r["text"], f"{r['n']}", f"{r['probe']:.1f} s"]
        for kind in ("forwards", "backwards"):
            cells += [f"{r[kind][1]:,}", ratio(r[kind])]
        for kind in ("clock", "processor"):
            cells += [f"{r[kind][1]:.1f} s", ratio(r[kind])]
        lines.append(f"| {' | '.join(cells)} |")
    within = {k: sum(off(r[k]) <= BOUND for r in rows) for k in worst}
    said = ", ".join(f"{k} {within[k]} of {len(rows)} (worst {v:.2f})" for k, v in worst.items())
    lines += ["", f"Within a factor of {BOUND}: {said}.", ""]
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    file = RESULTS / "estimate.json"
    kept = {r["name"]: r for r in json.loads(file.read_text())} if file.exists() else {}
    for case in CASES:
        if sys.argv[1:] and case.name not in sys.argv[1:]:
            continue
        if case.name == "golden" and not (SHARED / "golden" / "fashion_net.npz").exists():
            print("golden: no weights here")
            continue
        kept[case.name] = r = measure(case)
        print(case.name, {k: ratio(r[k]) for k in ("forwards", "backwards", "clock", "processor")}, flush=True)
        rows = [kept[c.name] for c in CASES if c.name in kept]
        file.write_text(json.dumps(rows, indent=1) + "\n")
        (RESULTS / "estimate.md").write_text(page(rows))


if __name__ == "__main__":
    main()
