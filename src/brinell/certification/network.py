"""A traced network: operations in the order of their computation, and the builder that collects them."""

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from brinell.certification.activations import Activation
from brinell.certification.operations import Input, Operation, Shape


@dataclass(frozen=True, eq=False)
class Node:
    """One operation with the positions of its inputs, the shape of one row of its output, and its name."""

    operation: Operation
    inputs: tuple[int, ...]
    shape: Shape
    name: str


@dataclass(frozen=True, eq=False)
class TracedNetwork:
    """The nodes of a network, in float64 by default; the first is the input, the last has the logits."""

    nodes: tuple[Node, ...]
    dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        return len(self.nodes)

    @property
    def classes(self) -> int:
        """The number of logits."""
        return self.nodes[-1].shape[0]

    @property
    def activations(self) -> tuple[int, ...]:
        """The positions of the activation functions."""
        return tuple(k for k, node in enumerate(self.nodes) if isinstance(node.operation, Activation))

    @property
    def kinks(self) -> tuple[int, ...]:
        """The positions of the activation functions that branch and bound can split."""
        return tuple(k for k in self.activations if activation(self.nodes[k]).kinked)

    @property
    def widest(self) -> int:
        """The largest number of values of one row in any node."""
        return max(int(torch.Size(node.shape).numel()) for node in self.nodes)

    @property
    def values_per_row(self) -> int:
        """The number of values of one row in all nodes."""
        return sum(int(torch.Size(node.shape).numel()) for node in self.nodes)

    @property
    def neurons(self) -> int:
        """The number of inputs of activation functions of one row."""
        return sum(int(torch.Size(self.nodes[k].shape).numel()) for k in self.activations)

    def shapes(self, k: int) -> tuple[Shape, ...]:
        """Return the shapes of the inputs of node k."""
        return tuple(self.nodes[i].shape for i in self.nodes[k].inputs)

    @cached_property
    def single(self) -> "TracedNetwork":
        """The same network with weights in float32, for passes that need no proof."""
        return TracedNetwork(
            tuple(replace(node, operation=_single(node.operation)) for node in self.nodes), torch.float32
        )

    def values(self, x: Tensor) -> list[Tensor]:
        """Return the values of all nodes for points x, in the network's precision."""
        values = [x.to(self.dtype)]
        for node in self.nodes[1:]:
            values.append(node.operation.apply(*(values[i] for i in node.inputs)))
        return values


def _single(operation: Operation) -> Operation:
    """Return an operation with its tensors in float32."""
    copied = copy.copy(operation)
    vars(copied).update({name: v.float() for name, v in vars(operation).items() if isinstance(v, Tensor)})
    return copied


def activation(node: Node) -> Activation:
    """Return the operation of a node that is an activation function."""
    assert isinstance(node.operation, Activation)
    return node.operation


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
