"""Image embeddings learned by letting all images of a mini-batch exchange messages.

The names below are the public interface; everything else may move. They are imported when first used, so that
`import intrabatch` and the command line's help stay quick. Training is `intrabatch.train.train`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import VERSION as __version__

if TYPE_CHECKING:
    from .backbone import Embedder
    from .clustering import cluster
    from .config import Config, LossConfig, MessagesConfig
    from .data.glyphs import glyphs
    from .data.image_set import ImageSet, split_classes, synthetic_images
    from .data.reading import read_any_images, read_images
    from .errors import IntrabatchError
    from .group_loss import GroupLoss
    from .messages import MessagePassing
    from .metrics import retrieval_figures
    from .model import IntraBatchLoss
    from .neighbours import nearest
    from .recipes import get_recipe
    from .trained import Trained

__all__ = [
    "Config",
    "Embedder",
    "GroupLoss",
    "ImageSet",
    "IntraBatchLoss",
    "IntrabatchError",
    "LossConfig",
    "MessagePassing",
    "MessagesConfig",
    "Trained",
    "__version__",
    "cluster",
    "get_recipe",
    "glyphs",
    "nearest",
    "read_any_images",
    "read_images",
    "retrieval_figures",
    "split_classes",
    "synthetic_images",
]

_HOMES = {
    "Config": "config",
    "Embedder": "backbone",
    "GroupLoss": "group_loss",
    "ImageSet": "data.image_set",
    "IntraBatchLoss": "model",
    "IntrabatchError": "errors",
    "LossConfig": "config",
    "MessagePassing": "messages",
    "MessagesConfig": "config",
    "Trained": "trained",
    "cluster": "clustering",
    "get_recipe": "recipes",
    "glyphs": "data.glyphs",
    "nearest": "neighbours",
    "read_any_images": "data.reading",
    "read_images": "data.reading",
    "retrieval_figures": "metrics",
    "split_classes": "data.image_set",
    "synthetic_images": "data.image_set",
}


def __getattr__(name: str) -> Any:
    """Fetch a public name from its module, once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'intrabatch' has no attribute '{name}'")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
