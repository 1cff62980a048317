"""One training step in two halves, gradients and then the update, with a look at the losses in between.

On a GPU each half is recorded as a CUDA graph and replayed, so that a small batch does not wait for Python to start a
thousand kernels; the only wait of a step is for its losses, before the update, because a loss that is not a number must
not move anything. What cannot be recorded (a head whose shapes depend on the labels) and a CPU take the plain way.
Recording changes nothing of what is computed. This module knows neither images, epochs nor run folders.
Shapes: B images of a batch, C pixels a side.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .group_loss import GroupLoss
from .many_classes import BatchClassesHead, HierarchicalHead
from .model import Network
from .optim import AveragedWeights, Optimizers, total_norm

UNRECORDABLE = (GroupLoss, BatchClassesHead, HierarchicalHead)
PLAIN_CALLS = 3
"""Calls before the recording: they choose convolution algorithms, compile, and make the optimiser's state."""
REPAYS_COMPILING = 150_000
"""Images from which on compiling, about half a minute, is worth its time (a ResNet-50 on an H200: 2,800 images a second
without, 6,000 with)."""


class Steps:
    """Computes losses and gradients of batches, and applies them."""

    def __init__(
        self,
        network: Network,
        optimizer: Optimizers,
        average: AveragedWeights | None,
        precision: torch.dtype,
        clip: float,
    ) -> None:
        self.network, self.optimizer, self.average = network, optimizer, average
        self.precision, self.clip = precision, clip
        self.names: tuple[str, ...] = ()
        self.record_anew()

    def record_anew(self) -> None:
        """Forget what was recorded: other parameters learn from now on."""
        recorded = next(self.network.parameters()).is_cuda and not any(
            isinstance(module, UNRECORDABLE) for module in self.network.modules()
        )
        self.gradients: Callable[[Tensor, Tensor], Tensor] = self._gradients
        self.update: Callable[[], None] = self._update
        if recorded:
            self.gradients, self.update = Recorded(self._gradients), Recorded(self._update)

    def _gradients(self, crops_B3CC: Tensor, labels_B: Tensor) -> Tensor:
        """The losses and the norm of the whole gradient, as `names` lists them; gradients are left clipped."""
        self.optimizer.zero_grad()
        with torch.autocast(crops_B3CC.device.type, self.precision, enabled=self.precision != torch.float32):
            parts = self.network(crops_B3CC, labels_B)
        loss = self.network.loss.total(parts)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = total_norm(self.network)
        if self.clip:
            shrink = (self.clip / norm).clamp(max=1.0)
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(shrink)
        self.names = ("loss", *(f"loss/{name}" for name in parts), "gradient_norm")
        return torch.stack([value.detach().float() for value in (loss, *parts.values(), norm)])

    def _update(self) -> None:
        self.optimizer.step()
        if self.average:
            self.average.update(self.network)


class Recorded:
    """A function of tensors that becomes a CUDA graph after a few plain calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, *inputs: Tensor) -> Any:
        self.calls += 1
        if self.graph is None:
            if self.calls <= PLAIN_CALLS:
                return self._plainly(inputs)
            self._record(inputs)
        assert self.graph is not None
        for kept, given in zip(self.inputs, inputs, strict=True):
            kept.copy_(given)
        self.graph.replay()
        return self.output

    def _plainly(self, inputs: tuple[Tensor, ...]) -> Any:
        """On a stream beside the usual one, as what is recorded later will be."""
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            output = self.function(*inputs)
        torch.cuda.current_stream().wait_stream(self.stream)
        return output

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [given.clone() for given in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            self.output = self.function(*self.inputs)
        self.graph = graph


def compile_where_it_pays(network: Network, wanted: str, num_images: int) -> bool:
    """Fuse the network's kernels by torch.compile, if `wanted` is always, or auto and so many images will repay it."""
    on_gpu = next(network.parameters()).is_cuda
    pays = num_images >= REPAYS_COMPILING and shutil.which("cc") is not None
    compiled = on_gpu and (wanted == "always" or (wanted == "auto" and pays))
    if compiled:
        forget_compiled()
        network.fuse()
    return compiled


def forget_compiled() -> None:
    """Compile again at the next call, whatever this process has compiled. PyTorch up to 2.11 does not see that a
    parameter has begun to learn, and in a process of many trainings it gives up compiling after the eighth."""
    torch._dynamo.reset()
