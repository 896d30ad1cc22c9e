"""Compares the zoo's networks with the layouts and golden logits of the published ones; writes results/zoo.md.

Run: python benchmarks/zoo_layouts.py (BRINELL_SHARED names the folder of golden numbers).
"""

import gzip
import json
import os
import sys
import time
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from brinell.models.arch import network
from brinell.models.zoo import cards

HERE = Path(__file__).resolve().parent
SHARED = Path(os.environ.get("BRINELL_SHARED", HERE.parents[1] / "shared"))
KEPT = ("mu", "sigma", "mean", "std")
TOLERANCE = 1e-3
WITHOUT_SQUEEZE = (
    "the recorded layout has no squeeze-and-excitation (its recording lacked the package that defines it); the "
    "published network has, and so has ours. Without it the layouts are the same."
)
KNOWN = {
    "cifar10/Linf/Peng2023Robust": WITHOUT_SQUEEZE,
    "cifar10/Linf/Amini2024MeanSparse_Ra_WRN_70_16": WITHOUT_SQUEEZE,
}


def recorded(shared: Path) -> tuple[dict[str, list[Any]], dict[str, dict[str, tuple[int, ...]]]]:
    """Records by name, and layouts as shapes by key."""
    with gzip.open(shared / "golden" / "zoo_layouts.json.gz") as f:
        stored = json.load(f)
    layouts = {k: {key: tuple(shape) for key, shape in v} for k, v in stored["layouts"].items()}
    return {"/".join(r[:3]): r[3:] for r in stored["records"]}, layouts


def layout(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shapes by key of a network that is never given memory."""
    return _layout(json.dumps(config))


@cache
def _layout(config: str) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {k: tuple(v.shape) for k, v in network(json.loads(config)).state_dict().items()}


def value(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """The golden weights: a function of the key."""
    r = np.random.RandomState(zlib.crc32(key.encode()))
    if len(shape) >= 2:
        return r.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
    if "running_var" in key:
        return 0.5 + r.random_sample(shape)
    if "running_mean" in key:
        return 0.1 * r.standard_normal(shape)
    return (1 if key.endswith("weight") else 0) + 0.1 * r.standard_normal(shape)


def golden_weights(net: nn.Module) -> nn.Module:
    for key, tensor in net.state_dict().items():
        if tensor.is_floating_point() and key.rpartition(".")[2] not in KEPT:
            tensor.copy_(torch.from_numpy(np.asarray(value(key, tuple(tensor.shape)))))
    return net.eval()


def logits(config: Mapping[str, Any]) -> Tensor:
    """The first ten logits of the golden input under the golden weights."""
    x = torch.from_numpy(np.random.RandomState(0).random_sample((4, 3, 32, 32))).float()
    # Without initial weights, which would take longer than all the rest.
    with torch.device("meta"):
        net = network(config)
    kept = {k: v for k, v in net.named_buffers() if not v.is_meta}
    net.to_empty(device="cpu")
    with torch.no_grad():
        for name, buffer in net.named_buffers():
            if name in kept:
                buffer.copy_(kept[name])
            elif not buffer.is_floating_point():
                buffer.zero_()
        return golden_weights(net)(x)[:, :10]


def error(config: Mapping[str, Any], golden: list[list[float]]) -> float:
    """Largest difference from the golden logits, relative to the largest of them."""
    want = torch.tensor(golden)
    return float((logits(config) - want).abs().max() / want.abs().max())


def compare(name: str, config: Mapping[str, Any], want: dict[str, tuple[int, ...]]) -> str:
    """What is different about the layout; nothing if it is the same."""
    mine = layout(config)
    if mine == want:
        return ""
    if name in KNOWN and layout({**config, "squeeze": None}) == want:
        return KNOWN[name]
    odd = sorted(set(mine.items()) ^ set(want.items()))
    return f"{len(odd)} keys or shapes differ, first {odd[0]}"


def report(records: dict[str, list[Any]], different: dict[str, str], errors: dict[str, float], nets: list[str]) -> str:
    zoo = cards()
    built = {n: r for n, r in records.items() if r[0] != "unbuilt"}
    have = sum(r[2] is not None for r in built.values())
    agree = sum(e <= TOLERANCE for e in errors.values())
    more = [n for n in records if n not in built]
    lines = [
        "# The zoo's networks beside the published ones",
        "",
        "Made by `python benchmarks/zoo_layouts.py` from the recorded layouts (names and shapes of every parameter and",
        "buffer) and golden logits (four random images, weights that are a function of their names).",
        "",
        f"- {len(built) - len(different)} of {len(built)} recorded layouts are the same in every key and shape.",
        f"- {agree} of {have} records with golden logits agree within {TOLERANCE:g}, relative to the largest logit.",
        f"  The largest difference is {max(errors.values()):.1e}. They are {len(nets)} different networks.",
        f"- {len(built) - have} records have no golden logits: for those only the layout is compared.",
        "",
        "## Different",
        "",
        *([f"- `{n}`: {why}" for n, why in different.items()] or ["None."]),
        "",
        "## Without a recorded layout",
        "",
        *[f"- `{n}`: {zoo[n].missing or 'has a network, which nothing was recorded to compare with'}." for n in more],
        "",
        "## Networks compared by logits",
        "",
        "| family | first record | parameters | difference |",
        "|---|---|---|---|",
        *[f"| {zoo[n].network['family']} | `{n}` | {records[n][1]:,} | {errors[n]:.1e} |" for n in nets],  # type: ignore
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    records, layouts = recorded(SHARED)
    zoo = cards()
    different: dict[str, str] = {}
    errors: dict[str, float] = {}
    seen: dict[str, str] = {}
    for name, (key, *rest) in records.items():
        if key == "unbuilt":
            continue
        config, golden = zoo[name].network, rest[1]
        trouble = zoo[name].missing if config is None else compare(name, config, layouts[key])
        if trouble:
            different[name] = trouble
        if config is None or golden is None:
            continue
        which = json.dumps([config, golden])
        if which not in seen:
            seen[which], start = name, time.perf_counter()
            errors[name] = error(config, golden)
            print(f"{name}: {errors[name]:.1e} ({time.perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)
        errors[name] = errors[seen[which]]
    text = report(records, different, errors, list(seen.values()))
    (HERE / "results" / "zoo.md").write_text(text)
    print(text[:900])


if __name__ == "__main__":
    main()
