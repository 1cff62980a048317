"""Optimisers, learning rates as a pure function of the step, and averaged weights.

Three groups of parameters learn at their own rates: the backbone; the embedding layer, message passing and
classifiers; class directions and proxies.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from .config import OptimConfig
from .model import Network

PROXIES = ("directions_CD", "proxies_CD")


def make_optimizer(network: Network, config: OptimConfig) -> torch.optim.Optimizer:
    """RAdam or AdamW over everything, in three groups; `base_rate` holds each group's full learning rate."""
    groups: dict[str, list[nn.Parameter]] = {"backbone": [], "heads": [], "proxies": []}
    for name, parameter in network.named_parameters():
        if name.startswith(("embedder.backbone.", "embedder.pool.")):
            groups["backbone"].append(parameter)
        else:
            groups["proxies" if name.endswith(PROXIES) else "heads"].append(parameter)
    factors = {"backbone": 1.0, "heads": config.head_factor, "proxies": config.proxy_factor}
    rates = {name: config.learning_rate * factor for name, factor in factors.items()}
    wanted = [
        {"params": parameters, "lr": rates[name], "base_rate": rates[name]}
        for name, parameters in groups.items()
        if parameters
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(wanted, weight_decay=config.weight_decay)
    return torch.optim.RAdam(wanted, weight_decay=config.weight_decay)


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["base_rate"] * factor


def rate_factor(step: int, steps_per_epoch: int, epochs: int, config: OptimConfig) -> float:
    """What the full learning rates are multiplied by at a step, counted from 0 over the whole run."""
    warmup_steps = config.warmup_epochs * steps_per_epoch
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if config.schedule == "cosine":
        progress = (step - warmup_steps) / max(1.0, epochs * steps_per_epoch - warmup_steps)
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
        for name, tensor in network.state_dict().items():
            if tensor.is_floating_point():
                self.average[name].lerp_(tensor, 1 - self.decay)
            else:
                self.average[name].copy_(tensor)


def total_norm(network: nn.Module) -> Tensor:
    """The norm of the whole gradient."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)
