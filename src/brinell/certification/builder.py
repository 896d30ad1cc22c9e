"""Collect the nodes of a network while it is traced."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from brinell.certification.network import Node
from brinell.certification.operations import Input, Operation


@dataclass(frozen=True)
class Value:
    """The output of a traced node: the node's position and the shape of its output for one point."""

    at: int
    shape: tuple[int, ...]


class Builder:
    """The nodes traced so far; translations add nodes to it."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.device = device
        self.nodes = [Node(Input(), (), shape, "input")]
        self.samples = [torch.zeros(1, *shape, dtype=torch.float64, device=device)]

    def add(self, operation: Operation, *inputs: Value, name: str = "") -> Value:
        """Append an operation and return a reference to its output."""
        at = tuple(value.at for value in inputs)
        sample = operation.apply(*(self.samples[i] for i in at))
        self.nodes.append(Node(operation, at, tuple(sample.shape[1:]), name or type(operation).__name__))
        self.samples.append(sample)
        return Value(len(self.nodes) - 1, tuple(sample.shape))

    def constant(self, value: Any) -> Tensor:
        """Return a constant as a float64 tensor without gradients."""
        return torch.as_tensor(value, dtype=torch.float64, device=self.device).detach()
