"""Optimisers, learning rates as a pure function of the step, and averaged weights.

Three groups of parameters learn at their own rates: the backbone; the embedding layer, message passing and
classifiers; class directions and proxies.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from .config import OptimConfig
from .many_classes import sparse_parameters
from .model import Network

PROXIES = ("directions_CD", "proxies_CD")
OF_DEVICE = ("lr", "base_rate", "capturable", "fused", "foreach")
"""Settings of a group that a checkpoint from another device must not change."""


class Optimizers:
    """RAdam or AdamW over everything, in three groups, and SparseAdam over parameters whose gradients are sparse.

    `base_rate` in each group holds its full learning rate. On a GPU learning rates lie there as tensors, so that a
    recorded update reads the rate of its step.
    """

    def __init__(self, network: Network, config: OptimConfig) -> None:
        sparse = sparse_parameters(network)
        groups = _groups(network, config, {id(parameter) for parameter in sparse})
        self.parts: list[torch.optim.Optimizer] = [_dense(groups, config)]
        if sparse:
            rate = config.learning_rate * config.head_factor
            self.parts.append(torch.optim.SparseAdam([{"params": sparse, "lr": rate, "base_rate": rate}]))
        self.factor = 1.0

    def set_rates(self, factor: float) -> None:
        self.factor = factor
        for part in self.parts:
            for group in part.param_groups:
                rate = group["base_rate"] * factor
                if isinstance(group["lr"], Tensor):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate

    def rate(self) -> float:
        """The backbone's learning rate."""
        return float(self.parts[0].param_groups[0]["base_rate"]) * self.factor

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self.parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Take over the state of a checkpoint; how updates are computed here is this device's affair."""
        for part, state in zip(self.parts, states, strict=True):
            groups = [
                saved | {key: own[key] for key in OF_DEVICE if key in own}
                for own, saved in zip(part.param_groups, state["param_groups"], strict=True)
            ]
            part.load_state_dict(state | {"param_groups": groups})


def _dense(groups: list[dict[str, Any]], config: OptimConfig) -> torch.optim.Optimizer:
    """The optimiser of all parameters with whole gradients; on a GPU one that can be recorded."""
    device = groups[0]["params"][0].device
    options: dict[str, Any] = {"weight_decay": config.weight_decay}
    if device.type == "cuda":
        groups = [group | {"lr": torch.tensor(group["lr"], device=device)} for group in groups]
        options |= {"capturable": True}
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, **options, fused=device.type == "cuda" or None)
    return torch.optim.RAdam(groups, **options)


def _groups(network: Network, config: OptimConfig, left_out: set[int]) -> list[dict[str, Any]]:
    groups: dict[str, list[nn.Parameter]] = {"backbone": [], "heads": [], "proxies": []}
    for name, parameter in network.named_parameters():
        if id(parameter) in left_out:
            continue
        if name.startswith(("embedder.backbone.", "embedder.pool.")):
            groups["backbone"].append(parameter)
        else:
            groups["proxies" if name.endswith(PROXIES) else "heads"].append(parameter)
    factors = {"backbone": 1.0, "heads": config.head_factor, "proxies": config.proxy_factor}
    rates = {name: config.learning_rate * factor for name, factor in factors.items()}
    return [
        {"params": parameters, "lr": rates[name], "base_rate": rates[name]}
        for name, parameters in groups.items()
        if parameters
    ]


def rate_factor(step: int, steps_per_epoch: int, epochs: int, config: OptimConfig) -> float:
    """What the full learning rates are multiplied by at a step, counted from 0 over the whole run."""
    frozen_steps = config.frozen_epochs * steps_per_epoch
    if step < frozen_steps:
        return config.frozen_factor
    first = frozen_steps + config.warmup_epochs * steps_per_epoch
    if step < first:
        return (step - frozen_steps + 1) / (first - frozen_steps + 1)
    if config.schedule == "cosine":
        progress = (step - first) / max(1.0, epochs * steps_per_epoch - first)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    if config.schedule == "step":
        return float(0.1 ** sum(step // steps_per_epoch >= milestone for milestone in config.milestones))
    return 1.0


class AveragedWeights:
    """An exponential moving average of every floating-point tensor of a network."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.average = {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        state = network.state_dict()
        moving = [name for name, tensor in state.items() if tensor.is_floating_point()]
        torch._foreach_lerp_([self.average[name] for name in moving], [state[name] for name in moving], 1 - self.decay)
        for name in state.keys() - set(moving):
            self.average[name].copy_(state[name])


def gradients(network: nn.Module) -> list[Tensor]:
    """All gradients there are; of sparse ones, the rows that are not zero."""
    found = [parameter.grad for parameter in network.parameters() if parameter.grad is not None]
    return [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in found]


def total_norm(network: nn.Module) -> Tensor:
    """The norm of the whole gradient."""
    return torch.nn.utils.get_total_norm(gradients(network))
