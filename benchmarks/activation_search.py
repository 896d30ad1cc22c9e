"""Samples that others proved unsafe and gradient attacks miss: does the search of the plan `exact` break them?

Usage: python benchmarks/activation_search.py [--model madry_tiny] [--batches 40]

BRINELL_SHARED names the folder with networks and data (MNIST). Every found point is checked on the model in float32.
"""

import argparse
import json
import time

import torch
from bracket import data
from published import FOLDER, published

import brinell
from brinell.certification.activation_search import searched_points
from brinell.core.start_pool import ActivationSearch

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="madry_tiny")
    parser.add_argument("--batches", type=int, default=40)
    given = parser.parse_args()
    model, (x, y) = published(given.model), data("mnist")
    threat = brinell.Linf(json.loads((FOLDER / "networks.json").read_text())[given.model]["eps"])
    ball = threat.ball(torch.zeros(1, dtype=torch.long), x.device)
    for i in json.loads((FOLDER / "hard_indices.json").read_text())[given.model]["proved_unsafe"]:
        before, x0 = time.process_time(), x[i : i + 1]
        found = searched_points(ActivationSearch(given.batches), model, x0, y[i : i + 1], ball)
        broken = bool(ball.contains(x0, found)) and int(model.forward(found).logits.argmax()) != int(y[i])
        spent = time.process_time() - before
        print(f"{given.model} {i} {'broken' if broken else 'standing'} {spent:.1f} s", flush=True)
