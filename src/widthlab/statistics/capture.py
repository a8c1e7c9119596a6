"""What the NTK needs of a forward and backward pass: inputs and output cotangents of layers.

`trainable_layers` and `capture` refuse, by name, every module whose part of the kernel the
contraction of a layer's input with its cotangent would get wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge
from torch.nn.modules.batchnorm import _BatchNorm

from widthlab.errors import WidthlabError
from widthlab.statistics.layer_gradients import GRADIENTS


@dataclass
class Captured:
    """A layer's input (m, …) and the cotangents of its output, (m, C, …)."""

    inputs: Tensor
    cotangents: Tensor


@dataclass
class _Call:
    """One call of a layer, as its forward hook saw it."""

    inputs: Tensor
    version: int
    output_shape: torch.Size
    edge: GradientEdge


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into evaluation mode, and every module back into its own mode after."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def trainable_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with trainable parameters of their own, by name.

    Raises WidthlabError naming the module where its type is not supported, where a parameter
    does not belong to a supported layer or is shared between modules, and where batch
    normalisation keeps no running statistics.
    """
    layers: dict[str, nn.Module] = {}
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        label = _label(name, module)
        if isinstance(module, _BatchNorm) and module.running_mean is None:
            raise WidthlabError(
                f"the NTK needs batch normalisation in evaluation mode, but {label} keeps no "
                "running statistics; build it with track_running_stats=True"
            )
        own = {key: p for key, p in module.named_parameters(recurse=False) if p.requires_grad}
        if not own:
            continue
        if type(module) not in GRADIENTS or "forward" in vars(module):
            known = ", ".join(kind.__name__ for kind in GRADIENTS)
            raise WidthlabError(
                f"the NTK cannot handle the parameters ({', '.join(own)}) of {label}; freeze them "
                f"(requires_grad_(False)) or build the network of {known}"
            )
        for key, parameter in own.items():
            if key not in ("weight", "bias"):
                raise WidthlabError(
                    f"the NTK cannot handle the parameter {key} of {label}; freeze it or remove "
                    "the reparameterisation"
                )
            if id(parameter) in owners:
                raise WidthlabError(
                    f"the NTK cannot handle the parameter {key} of {label}, which is shared with "
                    f"{owners[id(parameter)]}; untie the two"
                )
            owners[id(parameter)] = label
        layers[name] = module
    if not layers:
        raise WidthlabError("the network has no trainable parameter, so it has no NTK")
    return layers


def capture(model: nn.Module, layers: dict[str, nn.Module], x: Tensor) -> dict[str, Captured]:
    """Return what every layer that the output depends on received, for samples x (m, …).

    One forward pass and C backward passes, in the mode the model is in. Raises WidthlabError
    where the output is not of shape (m, C), where a layer is called more than once or its
    parameters are used outside it, and where its input is overwritten.
    """
    output, calls = _forward(model, layers, x)
    captured = {name: _empty(call, output) for name, call in calls.items()}
    edges = [call.edge for call in calls.values()]
    for c in range(output.shape[1]):
        # A sum over samples gives each its own gradient, since samples are independent.
        gradients = torch.autograd.grad(
            output[:, c].sum(), edges, retain_graph=c < output.shape[1] - 1, allow_unused=True
        )
        for layer, gradient in zip(captured.values(), gradients, strict=True):
            layer.cotangents[:, c] = 0.0 if gradient is None else gradient
    return captured


def probe(model: nn.Module, layers: dict[str, nn.Module], x: Tensor) -> dict[str, Captured]:
    """Return what `capture` would for a few samples (m ≥ 2), with cotangents left empty.

    One forward and one backward pass. Raises WidthlabError as `capture` does, and where the
    output of sample 0 depends on the other samples: by statistics over the batch, or where a
    layer's first axis is not the samples'.
    """
    output, calls = _forward(model, layers, x)
    weights = torch.linspace(0.5, 1.5, output.shape[1], dtype=output.dtype, device=output.device)
    gradients = torch.autograd.grad(
        (output[0] * weights).sum(), [call.edge for call in calls.values()], allow_unused=True
    )
    for name, gradient in zip(calls, gradients, strict=True):
        if gradient is not None and bool((gradient[1:].nan_to_num(0.0) != 0).any()):
            raise WidthlabError(
                f"the NTK needs samples that do not affect each other, but the output of one "
                f"sample depends on others through {_label(name, layers[name])}; use statistics "
                "of the single sample, and keep samples on the first axis"
            )
    return {name: _empty(call, output) for name, call in calls.items()}


def _empty(call: _Call, output: Tensor) -> Captured:
    """Return a layer's input, and memory for its cotangents."""
    shape = (*output.shape, *call.output_shape[1:])
    return Captured(call.inputs, torch.empty(shape, dtype=output.dtype, device=output.device))


def _forward(
    model: nn.Module, layers: dict[str, nn.Module], x: Tensor
) -> tuple[Tensor, dict[str, _Call]]:
    """Run the model and return its output and the calls on which the output depends."""
    calls: dict[str, _Call] = {}
    handles = [
        # Before any other hook, which could replace the layer's output.
        module.register_forward_hook(_Recorder(name, calls), prepend=True, with_kwargs=True)
        for name, module in layers.items()
    ]
    try:
        # A copy, since a model that overwrites its input would overwrite the caller's.
        output = model(x.clone())
    finally:
        for handle in handles:
            handle.remove()
    if not isinstance(output, Tensor) or output.ndim != 2 or output.shape[0] != x.shape[0]:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise WidthlabError(
            f"the NTK needs an output of shape (samples, outputs), but for {x.shape[0]} samples "
            f"the network returned {shape}; flatten or pool it"
        )
    if output.grad_fn is None:
        raise WidthlabError("the network's output does not depend on any trainable parameter")
    for name, call in calls.items():
        label = _label(name, layers[name])
        if call.inputs._version != call.version:
            raise WidthlabError(
                f"the NTK cannot handle {label}, whose input is overwritten in place after it "
                "was used; write the operation out of place"
            )
        if call.inputs.shape[0] != x.shape[0] or call.output_shape[0] != x.shape[0]:
            raise WidthlabError(
                f"the NTK needs samples on the first axis, but {label} got an input of shape "
                f"{tuple(call.inputs.shape)} for {x.shape[0]} samples; keep the samples' axis first"
            )
    return output, _reached(output, layers, calls)


def _reached(
    output: Tensor, layers: dict[str, nn.Module], calls: dict[str, _Call]
) -> dict[str, _Call]:
    """Return the calls in the graph of `output`, after checking how parameters are used in it."""
    nodes, uses = _graph(output)
    reached = {name: call for name, call in calls.items() if call.edge.node in nodes}
    for name, module in layers.items():
        for key, parameter in module.named_parameters(recurse=False):
            times = uses[id(parameter)]
            if parameter.requires_grad and times != (1 if name in reached else 0):
                raise WidthlabError(
                    f"the NTK needs every parameter to be used once, in the forward pass of its "
                    f"own module, but {key} of {_label(name, module)} is used {times} times in "
                    f"the network's output{'' if name in reached else ' and not by its module'}; "
                    "give each use a module of its own"
                )
    return reached


def _graph(output: Tensor) -> tuple[set[Node], Counter[int]]:
    """Return the nodes of the autograd graph of `output` and, by id, the uses of parameters."""
    assert output.grad_fn is not None
    nodes: set[Node] = {output.grad_fn}
    uses: Counter[int] = Counter()
    stack: list[Node] = [output.grad_fn]
    while stack:
        for node, _ in stack.pop().next_functions:
            if node is None:
                continue
            variable = getattr(node, "variable", None)
            if variable is not None:
                uses[id(variable)] += 1
            if node not in nodes:
                nodes.add(node)
                stack.append(node)
    return nodes, uses


class _Recorder:
    """The forward hook of one layer."""

    def __init__(self, name: str, calls: dict[str, _Call]) -> None:
        self.name, self.calls = name, calls

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
    ) -> Tensor:
        label = _label(self.name, module)
        if self.name in self.calls:
            raise WidthlabError(
                f"the NTK cannot handle {label}, which is called more than once in a forward "
                "pass; give each use a module of its own"
            )
        if output.grad_fn is None:
            raise WidthlabError(
                f"the NTK cannot follow the gradient through {label}: it is called under no_grad, "
                "or in a reentrant checkpoint; freeze its parameters or call it with gradients"
            )
        # An edge stays that of the output if it is overwritten, but not where it is a view.
        output = output.clone() if output._is_view() else output
        inputs: Tensor = args[0] if args else next(iter(kwargs.values()))
        self.calls[self.name] = _Call(
            inputs.detach(), inputs._version, output.shape, get_gradient_edge(output)
        )
        return output


def _label(name: str, module: nn.Module) -> str:
    """Return how messages name a module."""
    return f"module '{name}' ({type(module).__name__})" if name else type(module).__name__
