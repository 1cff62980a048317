"""What all tests share: a tiny run that trains in seconds, and one thread each when tests run side by side."""

import signal
from dataclasses import replace

import pytest
import torch

from intrabatch import settings
from intrabatch.config import Config
from intrabatch.data.image_set import split_classes, synthetic_images
from intrabatch.recipes import glyphs


@pytest.fixture(autouse=True, scope="session")
def few_threads():
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_interrupts():
    """Also where a shell started the tests in the background and told them to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def tiny_config(*assignments: str) -> Config:
    """A network of 10 layers on 16-pixel images: a step takes milliseconds."""
    small = [
        "image.crop=16", "image.resize=16", "model.dim=16", "batch.classes=3", "batch.images=2", "train.epochs=2",
        "train.device=cpu", "data.path=synthetic", "messages.heads=2",
    ]  # fmt: skip
    return settings.override(glyphs(), [*small, *assignments])


def tiny_images(seed: int = 0):
    """12 classes of 4 images; 2 validate and 3 test."""
    return split_classes(synthetic_images(12, 4, size=16, seed=seed), 0.15, 0.25, seed=0)


@pytest.fixture
def config() -> Config:
    return tiny_config()


@pytest.fixture
def images():
    return tiny_images()


__all__ = ["replace", "tiny_config", "tiny_images"]
