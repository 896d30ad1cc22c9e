"""Samples that others proved unsafe and gradient attacks miss: does the search of the plan `exact` break them?

Usage: python benchmarks/activation_search.py [--models marabou_small,sdp_mnist_a_adv,madry_tiny] [--batches 40]

BRINELL_SHARED names the folder with networks and data. Every found point is checked on the model in float32. A finished
sample is one line of results/activation_search.jsonl; one that is there with as many batches is not searched again.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from bracket import test_set
from published import FOLDER, published

import brinell
from brinell.certification.activation_search import searched_points
from brinell.core.start_pool import ActivationSearch

LINES = Path(__file__).parent / "results" / "activation_search.jsonl"


def search(name: str, i: int, batches: int) -> dict[str, object]:
    """Search for an adversarial example of one sample."""
    model, (x, y) = published(name), test_set(name)
    threat = brinell.Linf(json.loads((FOLDER / "networks.json").read_text())[name]["eps"])
    ball = threat.ball(torch.zeros(1, dtype=torch.long), x.device)
    before, x0 = time.process_time(), x[i : i + 1]
    found = searched_points(ActivationSearch(batches), model, x0, y[i : i + 1], ball)
    broken = bool(ball.contains(x0, found)) and int(model.forward(found).logits.argmax()) != int(y[i])
    spent = round(time.process_time() - before, 2)
    return {"model": name, "index": i, "batches": batches, "broken": broken, "seconds": spent}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="marabou_small,sdp_mnist_a_adv,madry_tiny")
    parser.add_argument("--batches", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [json.loads(line) for line in LINES.read_text().splitlines()] if LINES.exists() else []
    tried = {(row["model"], row["index"]) for row in rows if row["broken"] or row["batches"] >= given.batches}
    hard = json.loads((FOLDER / "hard_indices.json").read_text())
    for name in given.models.split(","):
        for i in hard[name]["proved_unsafe"]:
            if (name, i) not in tried:
                with LINES.open("a", buffering=1) as file:
                    file.write(json.dumps(search(name, i, given.batches)) + "\n")
