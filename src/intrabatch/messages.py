"""Message passing over a batch: every sample is refined by its relations to all others (paper, section 3.3).

The batch is a fully connected graph. In each step every node gathers messages from all nodes, itself included, weighted
by attention, and two residual connections with layer normalisation keep what it was. Nothing here knows of images,
classes or losses: features in, refined features out.

Shapes: B nodes, D feature size, M attention heads, E = D / M size of a head, J = B senders (+ 1 with the zero slot).
Any number of batch dimensions may stand before B, so that many small graphs are refined at once.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .errors import ConfigError


class Attention(nn.Module):
    """Dot-product attention among the nodes of a batch (paper, equations 1-4).

    `zero_slot` appends one sender whose key and value are zero, so that a node may listen to nobody; the released code
    has it, the paper does not. `output_projection` (released code) mixes the heads once more. `scale` divides the
    scores by sqrt(D / M) per "head" (released code) or by sqrt(D) in "full" (as the paper writes).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        dropout: float = 0.1,
        zero_slot: bool = True,
        output_projection: bool = True,
        scale: Literal["head", "full"] = "head",
    ) -> None:
        super().__init__()
        if dim % heads:
            fitting = ", ".join(str(m) for m in range(1, 17) if dim % m == 0)
            raise ConfigError(f"messages.heads is {heads}, but must divide model.dim = {dim}; choose from: {fitting}")
        self.heads = heads
        self.zero_slot = zero_slot
        self.scale = (dim // heads if scale == "head" else dim) ** -0.5
        self.query, self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim) if output_projection else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        for layer in (self.query, self.key, self.value, self.out):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def weights(self, feats_BD: Tensor) -> Tensor:
        """Who listens to whom: softmaxed scores of shape (M, B, B); with the zero slot rows sum to less than one."""
        query_MBE, key_MBE = self._split(self.query(feats_BD)), self._split(self.key(feats_BD))
        scores_MBJ: Tensor = query_MBE @ key_MBE.transpose(-1, -2) * self.scale
        if self.zero_slot:
            scores_MBJ = F.pad(scores_MBJ, (0, 1))
        weights_MBJ: Tensor = scores_MBJ.softmax(-1)
        return weights_MBJ[..., : feats_BD.shape[-2]]

    def forward(self, feats_BD: Tensor) -> Tensor:
        weights_MBB = self.dropout(self.weights(feats_BD))
        messages_MBE = weights_MBB @ self._split(self.value(feats_BD))
        messages_BD: Tensor = self.out(messages_MBE.transpose(-3, -2).flatten(-2))
        return messages_BD

    def _split(self, feats_BD: Tensor) -> Tensor:
        return feats_BD.reshape(*feats_BD.shape[:-1], self.heads, -1).transpose(-3, -2)


class MessageStep(nn.Module):
    """One step: attention and a two-layer network, each with a residual and layer normalisation (equations 5-6)."""

    def __init__(self, attention: Attention, dim: int, dropout: float) -> None:
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.grow, self.shrink = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, feats_BD: Tensor) -> Tensor:
        heard_BD = self.norm1(feats_BD + self.dropout(self.attention(feats_BD)))
        change_BD = self.shrink(self.dropout(self.grow(heard_BD).relu()))
        refined_BD: Tensor = self.norm2(heard_BD + self.dropout(change_BD))
        return refined_BD


class MessagePassing(nn.Module):
    """L message-passing steps over a batch of embeddings; returns the features after every step.

    `normalise_input` (released code) L2-normalises the embeddings first; `input_projection` (released code) then
    applies a linear layer. Use on its own: `refined = MessagePassing(512)(embeddings)[-1]`.
    """

    def __init__(
        self,
        dim: int = 512,
        steps: int = 1,
        heads: int = 2,
        *,
        dropout: float = 0.1,
        attention_dropout: float = 0.1,
        normalise_input: bool = True,
        input_projection: bool = True,
        **attention: bool | Literal["head", "full"],
    ) -> None:
        super().__init__()
        if steps < 1:
            raise ConfigError(f"messages.steps is {steps}; expected at least 1 (set loss.messages=0 for no messages)")
        self.normalise_input = normalise_input
        self.project = nn.Linear(dim, dim) if input_projection else nn.Identity()
        self.steps = nn.ModuleList(
            MessageStep(Attention(dim, heads, dropout=attention_dropout, **attention), dim, dropout)  # type: ignore[arg-type]
            for _ in range(steps)
        )

    def forward(self, feats_BD: Tensor) -> list[Tensor]:
        refined_LBD = [self._enter(feats_BD)]
        for step in self.steps:
            refined_LBD.append(step(refined_LBD[-1]))
        return refined_LBD[1:]

    @torch.no_grad()
    def attention(self, feats_BD: Tensor) -> list[Tensor]:
        """The attention weights (M, B, B) of every step, for pictures and questions."""
        inputs_LBD = [self._enter(feats_BD), *self(feats_BD)[:-1]]
        return [step.attention.weights(inputs) for step, inputs in zip(self.steps, inputs_LBD, strict=True)]  # type: ignore[union-attr, operator]

    def _enter(self, feats_BD: Tensor) -> Tensor:
        if self.normalise_input:
            feats_BD = F.normalize(feats_BD, dim=-1)
        entered_BD: Tensor = self.project(feats_BD)
        return entered_BD
