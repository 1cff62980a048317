"""A run is a Python function that returns a whole configuration. `intrabatch config NAME` prints one.

The settings of cub_paper, cars196, sop and inshop are those behind the paper's published rows; cub is our own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .config import (
    BatchConfig,
    Config,
    DataConfig,
    EvalConfig,
    ImageConfig,
    LossConfig,
    MessagesConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from .errors import ConfigError, did_you_mean


def glyphs() -> Config:
    """Built-in letter shapes, a small network from scratch: under two minutes on a laptop's CPU."""
    return Config(
        recipe="glyphs",
        data=DataConfig(source="glyphs"),
        image=ImageConfig(crop=32, resize=32, min_scale=0.8, flip=0.0, erase=0.0),
        batch=BatchConfig(classes=12, images=4),
        model=ModelConfig(backbone="resnet10t", weights="none", pooling="avg", dim=128),
        messages=MessagesConfig(steps=1, heads=4),
        loss=LossConfig(temperature=0.2, group_temperature=1.0),
        optim=OptimConfig(optimizer="adamw", learning_rate=2e-3, warmup_epochs=0.5, clip=5.0),
        train=TrainConfig(epochs=12),
    )


def folder() -> Config:
    """One's own photos: a small ImageNet backbone that trains on a CPU, frozen batch norm, mild augmentation."""
    return Config(
        recipe="folder",
        image=ImageConfig(crop=224, resize=256, min_scale=0.2, erase=0.25),
        batch=BatchConfig(classes=8, images=4),
        model=ModelConfig(
            backbone="efficientnet_lite0", pooling="avg+max", layer_norm=True, dim=256, batch_norm="frozen"
        ),
        messages=MessagesConfig(steps=1, heads=4),
        loss=LossConfig(temperature=1.0),
        optim=OptimConfig(optimizer="adamw", learning_rate=1e-4, head_factor=5.0, warmup_epochs=0.5, clip=5.0),
        train=TrainConfig(epochs=12),
    )


def _published(recipe: str, batch: tuple[int, int], rate: float, decay: float, temperature: float) -> Config:
    """What the four published rows share: ResNet-50, 512 numbers, 70 epochs, RAdam, the rate divided by 10 at
    epoch 30."""
    return Config(
        recipe=recipe,
        batch=BatchConfig(classes=batch[0], images=batch[1]),
        loss=LossConfig(temperature=temperature),
        optim=OptimConfig(learning_rate=rate, weight_decay=decay, schedule="step", milestones=(30,)),
    )


def cub() -> Config:
    """CUB-200-2011 by our own recipe: Proxy Anchor with message passing beside it.

    As far as it is chosen, on training classes held out (LOG.md); it was not measured on the test classes yet.
    """
    return Config(
        recipe="cub",
        data=DataConfig(source="cub"),
        batch=BatchConfig(classes=30, images=6),
        model=ModelConfig(pooling="avg+max", batch_norm="frozen", whiten=0.125),
        messages=MessagesConfig(steps=1, heads=2),
        loss=LossConfig(auxiliary_head="proxy_anchor", proxy_anchor_alpha=16.0, temperature=1.0),
        optim=OptimConfig(
            optimizer="adamw", learning_rate=5e-5, proxy_factor=200.0, warmup_epochs=1.0, ema=0.998
        ),
        train=TrainConfig(epochs=40),
    )


def cub_paper() -> Config:
    """CUB-200-2011 as published (R@1 70.3, NMI 74.0 there, with test feedback; 67.1 without)."""
    base = _published("cub_paper", (6, 9), 1.5636637e-4, 6.06e-6, 0.2)
    return replace(
        base,
        data=DataConfig(source="cub"),
        batch=replace(base.batch, redraw=True),
        messages=MessagesConfig(steps=1, heads=2),
    )


def cars196() -> Config:
    """Cars196 as published (R@1 88.1, NMI 74.8)."""
    return replace(
        _published("cars196", (10, 7), 3.668324e-4, 2.55e-9, 0.11111),
        data=DataConfig(source="cars196"),
        messages=MessagesConfig(steps=2, heads=8, head_input="all"),
    )


def sop() -> Config:
    """Stanford Online Products as published (R@1 81.4, NMI 92.6).

    The released settings turn message passing off here; the paper does not.
    """
    return replace(
        _published("sop", (15, 6), 2.4724717e-4, 2.77e-13, 0.60469),
        data=DataConfig(source="sop"),
        messages=MessagesConfig(steps=1, heads=8),
        evaluation=EvalConfig(recall_at=(1, 10, 100, 1000)),
    )


def inshop() -> Config:
    """In-Shop Clothes as published (R@1 92.8), queries against the gallery."""
    return replace(
        _published("inshop", (14, 4), 1.1265975e-4, 1.06e-7, 0.18591),
        data=DataConfig(source="inshop"),
        messages=MessagesConfig(steps=1, heads=4),
        evaluation=EvalConfig(recall_at=(1, 10, 20, 30, 40)),
    )


PUBLISHED = (cub_paper, cars196, sop, inshop)


def larger_images(recipe: Callable[[], Config]) -> Callable[[], Config]:
    """The same recipe with 256-pixel crops of 288, as in the paper's table of larger images."""

    def larger() -> Config:
        """The same with 256-pixel crops of 288."""
        config = recipe()
        return replace(config, recipe=f"{config.recipe}_256", image=replace(config.image, crop=256, resize=288))

    return larger


RECIPES: dict[str, Callable[[], Config]] = {
    **{recipe.__name__: recipe for recipe in (glyphs, folder, cub, *PUBLISHED)},
    **{f"{recipe.__name__}_256": larger_images(recipe) for recipe in PUBLISHED},
}


def get_recipe(name: str) -> Config:
    """The configuration called `name`."""
    if name not in RECIPES:
        raise ConfigError(f"unknown recipe '{name}'{did_you_mean(name, RECIPES)}")
    return RECIPES[name]()
