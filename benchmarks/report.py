"""How long the report of a Run of 10,000 samples takes to make and to open: `python benchmarks/report.py`.

The Run is made up, with rows as AutoAttack on CIFAR-10 leaves them: four attacks in a chain, half of the samples
broken, images of 3 x 32 x 32. Opening is measured in headless Chromium, where it is installed, from the request to the
load event and one frame after it.
"""

import hashlib
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.browser import PROGRAM, Browser  # noqa: E402

from brinell.report import write  # noqa: E402
from brinell.results import ROWS, Run, Writer, new_manifest  # noqa: E402

N, SHAPE, CLASSES, EPS = 10_000, (3, 32, 32), 10, 8 / 255
STAGES = (("apgd-ce", 0.40), ("apgd-t", 0.06), ("fab-t", 0.002), ("square", 0.001))  # share of all samples they break
OUT = ROOT / "benchmarks" / "results" / "report.md"


class Images:
    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def chunks(self, size: int):
        for i in range(0, len(self.x), size):
            yield SimpleNamespace(ids=np.arange(i, min(i + size, len(self.x))), x=self.x[i : i + size])


def make(path: Path) -> Images:
    rng = np.random.default_rng(0)
    x = rng.random((N, *SHAPE), dtype=np.float32)
    fate = rng.choice(6, N, p=[0.12, *(s for _, s in STAGES), 0.88 - sum(s for _, s in STAGES)])
    label, margin = rng.integers(0, CLASSES, N), -np.abs(rng.normal(3, 2, N))
    requires = {"square": "logits"}
    stages = [{"name": n, "attack": {}, "hash": n, "needs": requires.get(n, "gradient")} for n, _ in STAGES]
    identity = {
        "threat": {"norm": "Linf", "eps": EPS, "eps_text": "8/255", "box": [0, 1]},
        "goal": "misclassify",
        "plan": {"name": "autoattack", "strength": "standard", "stages": stages},
        "model": {"fingerprint": "0" * 64, "name": "made-up", "classes": CLASSES},
        "data": {"fingerprint": "0" * 64, "n": N, "name": "cifar10"},
        "seed": 0,
        "precision": "float32",
    }
    with Writer.create(path, new_manifest(identity, {"brinell": "0"})) as writer:
        for begin in range(0, N, 1000):
            rows, ids, found = [], [], []
            for i in range(begin, begin + 1000):
                wrong = fate[i] == 0
                base = {
                    "sample_id": i, "x_sha256": hashlib.sha256(x[i].tobytes()).hexdigest(), "label": int(label[i]),
                    "clean_pred": int(label[i] + wrong) % CLASSES, "clean_margin": -margin[i] if wrong else margin[i],
                    "seed": 0, "precision": "float32", "device": "cuda", "flags": [],
                }  # fmt: skip
                clean = {"attack": "clean", "attack_hash": "", "broken": bool(wrong), "verified": bool(wrong) or None}
                rows.append({**base, **clean, "distance": 0.0, "forwards": 1, "backwards": 0, "seconds": 0.0})
                for j, (name, _) in enumerate(STAGES, 1):
                    if wrong or fate[i] < j:
                        continue
                    row = {**base, "attack": name, "attack_hash": name, "broken": False, "adv_margin": margin[i] / 3}
                    if fate[i] == j:
                        step = rng.choice([-EPS, EPS], SHAPE).astype(np.float32)
                        ids.append(i)
                        found.append(np.clip(x[i] + step, 0, 1))
                        row |= {"broken": True, "verified": True, "adv_pred": int(label[i] + 1) % CLASSES}
                        row |= {"adv_margin": 0.2, "distance": EPS, "first_broken_at": int(rng.integers(0, 100))}
                    rows.append({**row, "forwards": 101 * j, "backwards": 100 * j, "seconds": 0.01})
            writer.append(pa.Table.from_pylist(rows, schema=ROWS), np.array(ids, np.int64), np.array(found, np.float32))
        writer.update(finished=True, wall_seconds=60.0)
    return Images(x)


def opened(path: Path) -> float:
    with Browser() as browser:
        page, times = browser.page(), []
        for _ in range(3):
            start = time.perf_counter()
            page.open(path.as_uri())
            page.run("new Promise(done => requestAnimationFrame(() => setTimeout(done)))")
            times.append(time.perf_counter() - start)
    return sorted(times)[1]


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        images = make(folder / "run")
        run = Run.open(folder / "run")
        start = time.perf_counter()
        path = write(run, folder / "report.html", problem=images)
        made = time.perf_counter() - start
        rows = run.rows().num_rows
        shown = f"{opened(path):.2f} s (median of 3)" if PROGRAM else "not measured: no Chromium here"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        lines = [
            "# The report of a large Run",
            "",
            f"`python benchmarks/report.py`: a made-up Run of {N:,} samples of 3 × 32 × 32 and {rows:,} rows, four "
            f"attacks, {len(run.adversarials().ids):,} stored adversarials; one core. Charts are "
            "aggregated and the gallery is limited, so the page does not grow with the samples.",
            "",
            "| | |",
            "|---|---|",
            f"| made in | {made:.1f} s, reading the Run and its images included |",
            f"| size | {path.stat().st_size / 1e6:.2f} MB |",
            f"| opened in headless Chromium, to the first frame after loading | {shown} |",
            f"| largest memory of the process, which also made the Run | {peak:,.0f} MiB |",
        ]
        OUT.write_text("\n".join(lines) + "\n")
        print("\n".join(lines))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
