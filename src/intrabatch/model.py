"""The parts put together: the loss with message passing, and the whole network that training moves.

`IntraBatchLoss(num_classes, dim)(embeddings, labels)` has the call shape of the field's losses and works in anybody's
loop: give its parameters to the optimiser, and drop it when training is over. It knows no images and no backbone.
Shapes: B samples, D embedding size, L message-passing steps, C classes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from .backbone import Embedder, require_size
from .config import Config, LossConfig, MessagesConfig
from .errors import DataError
from .group_loss import GroupLoss
from .heads import CosineHead, LinearHead, ProxyAnchorHead
from .many_classes import BatchClassesHead, HierarchicalHead
from .messages import MessagePassing

Head = LinearHead | CosineHead | ProxyAnchorHead | GroupLoss | BatchClassesHead | HierarchicalHead


def make_head(kind: str, dim: int, num_classes: int, loss: LossConfig, *, refined: bool) -> Head:
    """The head called `kind`, on the backbone's embedding or on refined features (with a batch-norm neck)."""
    temperature = loss.temperature if not refined or loss.messages_temperature is None else loss.messages_temperature
    if kind == "cosine":
        return CosineHead(dim, num_classes, temperature=temperature, smoothing=loss.smoothing)
    if kind == "proxy_anchor":
        return ProxyAnchorHead(dim, num_classes, margin=loss.proxy_anchor_margin, alpha=loss.proxy_anchor_alpha)
    if kind == "group":
        return GroupLoss(num_classes, dim, steps=loss.group_steps, temperature=loss.group_temperature)
    if kind == "hierarchical":
        return HierarchicalHead(dim, num_classes, temperature=temperature, neck=refined)
    if kind == "batch_classes":
        return BatchClassesHead(dim, num_classes, temperature=temperature, smoothing=loss.smoothing, neck=refined)
    return LinearHead(dim, num_classes, temperature=temperature, smoothing=loss.smoothing, neck=refined)


class IntraBatchLoss(nn.Module):
    """Cross-entropy on the embeddings plus cross-entropy on what they become by exchanging messages in the batch.

    loss_fn = IntraBatchLoss(num_classes=100, dim=512)
    optimizer = torch.optim.AdamW([*model.parameters(), *loss_fn.parameters()])
    loss = loss_fn(embeddings, labels)   # embeddings as they leave the model, not normalised

    `messages` and `loss` hold every variant of the method; their defaults are the released code's.
    """

    def __init__(
        self,
        num_classes: int,
        dim: int = 512,
        *,
        messages: MessagesConfig | None = None,
        loss: LossConfig | None = None,
    ) -> None:
        super().__init__()
        messages, loss = messages or MessagesConfig(), loss or LossConfig()
        self.num_classes, self.dim = num_classes, dim
        self.weights = {"auxiliary": loss.auxiliary, "messages": loss.messages}
        self.all_steps = messages.head_input == "all"
        self.auxiliary: Head | None = None
        self.passing: MessagePassing | None = None
        self.refined: Head | None = None
        if loss.auxiliary:
            self.auxiliary = make_head(loss.auxiliary_head, dim, num_classes, loss, refined=False)
        if loss.messages:
            settings = asdict(messages)
            settings.pop("head_input")
            self.passing = MessagePassing(dim, **settings)
            width = dim * messages.steps if self.all_steps else dim
            self.refined = make_head(loss.messages_head, width, num_classes, loss, refined=True)

    def forward(self, embeddings_BD: Tensor, labels_B: Tensor, indices_tuple: None = None) -> Tensor:
        """The loss of a batch; `indices_tuple` is where pytorch-metric-learning's trainers pass mined pairs."""
        if indices_tuple is not None:
            raise DataError("IntraBatchLoss: mined pairs were given; it compares all images of a batch, use no miner")
        return self.total(self.parts(embeddings_BD, labels_B))

    def total(self, parts: dict[str, Tensor]) -> Tensor:
        """The weighted sum of the losses."""
        return torch.stack([self.weights[name] * value for name, value in parts.items()]).sum()

    def parts(self, embeddings_BD: Tensor, labels_B: Tensor) -> dict[str, Tensor]:
        """The losses by name, before their weights: "auxiliary" and "messages", those that are on."""
        self._check(embeddings_BD, labels_B)
        found = {}
        if self.auxiliary is not None:
            found["auxiliary"] = self.auxiliary(embeddings_BD, labels_B)
        if self.refined is not None:
            found["messages"] = self.refined(self.refine(embeddings_BD), labels_B)
        return found

    def refine(self, embeddings_BD: Tensor) -> Tensor:
        """What the head on refined features reads: the last step's features, or all steps' side by side."""
        assert self.passing is not None, "loss.messages is 0: there is no message passing in this loss"
        refined_LBD = self.passing(embeddings_BD)
        return torch.cat(refined_LBD, dim=-1) if self.all_steps else refined_LBD[-1]

    def _check(self, embeddings_BD: Tensor, labels_B: Tensor) -> None:
        """Shapes, and label values where looking does not make a GPU wait."""
        if embeddings_BD.ndim != 2 or embeddings_BD.shape[1] != self.dim:
            shape = tuple(embeddings_BD.shape)
            raise DataError(f"IntraBatchLoss: embeddings have shape {shape}, expected (batch, {self.dim}); set dim=")
        if labels_B.shape != embeddings_BD.shape[:1]:
            shape = tuple(labels_B.shape)
            raise DataError(f"IntraBatchLoss: labels have shape {shape}, expected ({len(embeddings_BD)},)")
        if labels_B.device.type == "cpu" and len(labels_B):
            low, high = int(labels_B.min()), int(labels_B.max())
            if low < 0 or high >= self.num_classes:
                expected = f"expected 0 to {self.num_classes - 1}; set num_classes="
                raise DataError(f"IntraBatchLoss: labels run from {low} to {high}, {expected}")


class Network(nn.Module):
    """What training moves: the embedder, kept afterwards, and the loss, which is only needed to train."""

    def __init__(self, config: Config, num_classes: int, *, load_weights: bool = True) -> None:
        super().__init__()
        self.embedder = Embedder(config.model, load_weights=load_weights)
        require_size(self.embedder.backbone, config.model.backbone, config.image.crop)
        self.loss = IntraBatchLoss(num_classes, config.model.dim, messages=config.messages, loss=config.loss)
        self.fused: dict[str, Callable[..., Any]] = {}

    def forward(self, images_B3HW: Tensor, labels_B: Tensor) -> dict[str, Tensor]:
        """The losses of a batch by name."""
        return self.losses(self.embeddings(images_B3HW), labels_B)

    def embeddings(self, images_B3HW: Tensor) -> Tensor:
        """Raw embeddings of a batch, for training."""
        embeddings_BD: Tensor = self.fused.get("embedder", self.embedder)(images_B3HW)
        return embeddings_BD

    def losses(self, embeddings_BD: Tensor, labels_B: Tensor) -> dict[str, Tensor]:
        """The losses by name; in float32, whatever the backbone computes in."""
        with torch.autocast(embeddings_BD.device.type, enabled=False):
            parts: dict[str, Tensor] = self.fused.get("losses", self.loss.parts)(embeddings_BD.float(), labels_B)
        return parts

    def fuse(self) -> None:
        """Compile what training calls: embedder and losses apart, so that the same backbone under another loss is found
        as it was compiled before."""
        self.fused = {
            "embedder": torch.compile(self.embedder.forward, dynamic=False),
            "losses": torch.compile(self.loss.parts, dynamic=False),
        }
