"""Everything a run can be told, as frozen dataclasses; the text under a field is its documentation, in the help too.

Sections follow the way of the data: images, batches, network, messages, losses, optimisation, training, evaluation.
Checks across fields stand in `__post_init__`. This module knows nothing of torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from .errors import ConfigError

HeadKind = Literal["linear", "cosine", "proxy_anchor", "group", "batch_classes", "hierarchical"]


def require(holds: bool, message: str) -> None:
    """Raise a ConfigError with `message` unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def require_at_least(least: int, section: str, **values: float | None) -> None:
    """Raise a ConfigError for a setting that is given and below `least`."""
    for name, value in values.items():
        require(value is None or value >= least, f"{section}.{name} is {value}; expected at least {least}")


def require_share(section: str, **values: float) -> None:
    """Raise a ConfigError for a setting outside 0 to 1."""
    for name, value in values.items():
        require(0 <= value <= 1, f"{section}.{name} is {value}; expected 0 to 1")


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    path: str = ""
    """where the images are: a folder, a CSV or Parquet table, or the word glyphs; the command line's DATA"""
    source: Literal["auto", "glyphs", "folder", "table", "cub", "cars196", "sop", "inshop", "inshop-highres"] = "auto"
    """what the images are: a folder per class, a CSV or Parquet table, a benchmark's official layout, the built-in
    glyphs; auto tells a table from a folder by what it is"""
    val_fraction: float = 0.1
    """share of the training classes held out to validate, when the data has no val split of its own; 0 for none"""
    test_fraction: float = 0.25
    """share of the classes held out to test, when the data has no split at all; 0 for none"""
    split_seed: int = 0
    """seed of the split into classes"""
    hide_test: bool = False
    """leave the test images out altogether, so that no setting can be chosen by them; figures are then of the
    validation classes"""
    glyph_classes: int = 300
    """built-in glyphs: how many training characters; test characters come from other scripts"""
    glyph_images: int = 20
    """built-in glyphs: images of each character"""
    glyph_size: int = 64
    """built-in glyphs: pixels a side"""

    def __post_init__(self) -> None:
        require(0 <= self.val_fraction < 1, f"data.val_fraction is {self.val_fraction}; expected 0 up to under 1")
        require(0 <= self.test_fraction < 1, f"data.test_fraction is {self.test_fraction}; expected 0 up to under 1")
        require_at_least(0, "data", split_seed=self.split_seed)
        require_at_least(2, "data", glyph_classes=self.glyph_classes, glyph_images=self.glyph_images)
        require_at_least(16, "data", glyph_size=self.glyph_size)


@dataclass(frozen=True, kw_only=True)
class ImageConfig:
    crop: int = 227
    """pixels a side of the square the network sees"""
    resize: int = 256
    """pixels of the shorter side, before the centre crop at test time; images are kept in memory at this size"""
    min_scale: float = 0.08
    """training: the smallest share of an image's area that a random crop takes"""
    max_scale: float = 1.0
    """training: the largest share"""
    flip: float = 0.5
    """training: chance of a left-right flip"""
    erase: float = 0.5
    """training: chance that a random rectangle is erased"""
    colour: float = 0.0
    """training: brightness, contrast and saturation are changed by up to this share; 0 for none"""
    store: Literal["auto", "device", "memory", "stream"] = "auto"
    """where decoded images stay: on the training device, in memory, or nowhere (decoded for every batch); auto
    takes the first that fits"""

    def __post_init__(self) -> None:
        require(self.crop >= 8, f"image.crop is {self.crop}; expected at least 8 pixels")
        require(self.resize >= self.crop, f"image.resize is {self.resize}; expected at least image.crop = {self.crop}")
        require_share("image", flip=self.flip, erase=self.erase)
        ordered = 0 < self.min_scale <= self.max_scale <= 1
        scales = f"image.min_scale, max_scale are {self.min_scale}, {self.max_scale}"
        require(ordered, f"{scales}; expected 0 < min <= max <= 1")
        require(0 <= self.colour < 1, f"image.colour is {self.colour}; expected 0 up to under 1")


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    classes: int = 6
    """P: different classes in a batch"""
    images: int = 9
    """K: images of each class in a batch"""
    redraw: bool = False
    """draw P and K anew every epoch among the factorisations of P x K (the released code does, on CUB)"""

    def __post_init__(self) -> None:
        require(self.classes >= 2, f"batch.classes is {self.classes}; expected at least 2")
        require(self.images >= 1, f"batch.images is {self.images}; expected at least 1")

    @property
    def size(self) -> int:
        return self.classes * self.images


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    backbone: str = "resnet50"
    """any timm model by name"""
    weights: str = "pretrained"
    """what the backbone starts from: pretrained (timm's hub, or an installed package), none, or a weights file"""
    caffe_stride: bool = False
    """ResNets: stride in the first 1x1 convolution of a block, as the original (Caffe and Keras) weights need"""
    pooling: Literal["avg", "max", "avg+max", "gem", "native"] = "max"
    """how the feature map becomes a vector; native leaves it to timm's model (transformers)"""
    output_stride: Literal[32, 16, 8] = 32
    """convolutional networks: pixels of the image to a step of the last feature map; 16 makes the map twice as fine
    and training slower"""
    layer_norm: bool = False
    """normalise the pooled features (no learned scale or shift) before the embedding layer"""
    dim: int = 512
    """numbers in an embedding"""
    batch_norm: Literal["trained", "frozen"] = "trained"
    """frozen keeps the backbone's batch-norm statistics and scales as they came"""
    whiten: float = 0.0
    """before embeddings are measured or kept, they are centred, and each principal direction of the training images'
    embeddings is divided by its standard deviation to the power 2 x this; 0.5 makes all directions count alike, 0 is
    off"""

    def __post_init__(self) -> None:
        require(self.dim >= 1, f"model.dim is {self.dim}; expected at least 1")
        require(0 <= self.whiten <= 0.5, f"model.whiten is {self.whiten}; expected 0 to 0.5")


@dataclass(frozen=True, kw_only=True)
class MessagesConfig:
    steps: int = 1
    """L: message-passing steps"""
    heads: int = 2
    """M: attention heads; must divide model.dim"""
    zero_slot: bool = True
    """a node may listen to nobody: one more sender with key 0 and value 0 (released code; the paper has none)"""
    output_projection: bool = True
    """mix the heads by a linear layer (released code; the paper only concatenates)"""
    scale: Literal["head", "full"] = "head"
    """divide scores by sqrt(d / M) (head, released code) or by sqrt(d) (full, as the paper writes)"""
    normalise_input: bool = True
    """L2-normalise embeddings before the first message (released code)"""
    input_projection: bool = True
    """a linear layer before the first message (released code)"""
    dropout: float = 0.1
    """dropout after attention and in the feed-forward layers"""
    attention_dropout: float = 0.1
    """dropout on attention weights (released code)"""
    head_input: Literal["last", "all"] = "last"
    """what the head on refined features reads: the last step's features, or those of all steps concatenated
    (Cars196)"""

    def __post_init__(self) -> None:
        way_out = "(set loss.messages=0 for no messages)"
        require(self.steps >= 1, f"messages.steps is {self.steps}; expected at least 1 {way_out}")
        require_at_least(1, "messages", heads=self.heads)
        require_share("messages", dropout=self.dropout, attention_dropout=self.attention_dropout)


@dataclass(frozen=True, kw_only=True)
class LossConfig:
    auxiliary: float = 1.0
    """weight of the loss on the backbone's own embedding; 0 turns it off"""
    messages: float = 1.0
    """weight of the loss on the refined features; 0 turns message passing off"""
    auxiliary_head: HeadKind = "linear"
    """linear: cross-entropy over a linear classifier (the paper); cosine: normalised softmax; proxy_anchor: Proxy
    Anchor; group: the Group Loss; for very many classes batch_classes: cross-entropy over the batch's classes only;
    hierarchical: a two-level softmax"""
    messages_head: HeadKind = "linear"
    """the same choice for the refined features"""
    temperature: float = 0.2
    """T: logits of the auxiliary head are divided by it"""
    messages_temperature: float | None = None
    """T of the head on refined features; none means the same as loss.temperature"""
    smoothing: float = 0.1
    """label smoothing"""
    proxy_anchor_alpha: float = 32.0
    """Proxy Anchor: how much more hard images count; its authors' 32"""
    proxy_anchor_margin: float = 0.1
    """Proxy Anchor: cosines are to be this far from zero, on either side"""
    group_steps: int = 1
    """Group Loss: steps of replicator dynamics"""
    group_temperature: float = 24.0
    """Group Loss: T of its prior (24 in its authors' settings)"""

    def __post_init__(self) -> None:
        require(self.auxiliary >= 0 and self.messages >= 0, "loss.auxiliary and loss.messages must not be negative")
        require(self.auxiliary + self.messages > 0, "loss.auxiliary and loss.messages are both 0; nothing to train")
        for name in ("temperature", "messages_temperature", "group_temperature", "proxy_anchor_alpha"):
            value = getattr(self, name)
            require(value is None or value > 0, f"loss.{name} is {value}; expected above 0")
        require_at_least(1, "loss", group_steps=self.group_steps)
        require(0 <= self.smoothing < 1, f"loss.smoothing is {self.smoothing}; expected 0 up to under 1")


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    optimizer: Literal["radam", "adamw"] = "radam"
    """radam (the paper) adds weight decay to the gradient; adamw decouples it"""
    learning_rate: float = 1e-4
    """of the backbone"""
    head_factor: float = 1.0
    """learning rate of the embedding layer, message passing and classifiers, as a multiple of the backbone's"""
    proxy_factor: float = 1.0
    """learning rate of class directions and proxies, as a multiple of the backbone's"""
    weight_decay: float = 1e-4
    """weight decay of all parameters"""
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    """how the learning rate falls over the run"""
    milestones: tuple[int, ...] = (30,)
    """step schedule: epochs after which the learning rate is divided by 10"""
    warmup_epochs: float = 0.0
    """epochs over which the learning rate rises linearly from 0, after those with a frozen backbone"""
    frozen_epochs: int = 0
    """epochs at the start in which only the embedding layer and the heads learn"""
    frozen_factor: float = 1.0
    """learning rates in those epochs, as a multiple of the full ones"""
    clip: float = 0.0
    """largest norm of the whole gradient; 0 for no clipping"""
    ema: float = 0.0
    """decay of the averaged weights that are evaluated and saved, such as 0.998; 0 for none"""

    def __post_init__(self) -> None:
        require(self.learning_rate > 0, f"optim.learning_rate is {self.learning_rate}; expected above 0")
        require(0 <= self.ema < 1, f"optim.ema is {self.ema}; expected 0 up to under 1")
        require_at_least(0, "optim", head_factor=self.head_factor, proxy_factor=self.proxy_factor)
        require_at_least(0, "optim", frozen_factor=self.frozen_factor)
        counted = min(self.milestones, default=1) >= 1
        require(counted, f"optim.milestones is {list(self.milestones)}; expected epochs from 1, such as [30, 50]")
        require_at_least(0, "optim", weight_decay=self.weight_decay, clip=self.clip)
        require_at_least(0, "optim", warmup_epochs=self.warmup_epochs, frozen_epochs=self.frozen_epochs)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    epochs: int = 70
    """passes over the training images"""
    seed: int = 0
    """decides initial weights, batches, augmentation and dropout"""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1 ..."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """of the backbone; auto is bf16 where the device computes in it natively and float32 elsewhere"""
    compile: Literal["auto", "always", "never"] = "auto"
    """GPU: fuse the network's kernels by torch.compile, which takes about half a minute; auto where training is
    long enough to repay it"""
    validate_every: int = 1
    """epochs between validations; 0 validates after the last only"""
    protocol: Literal["final", "validation", "as-published"] = "final"
    """which epoch's weights are kept: the last (final), the one best on the validation classes, or, only to compare
    with the paper, the one best on the TEST classes, reloaded after epochs 30 and 50 (as-published)"""
    watch_test: bool = False
    """measure the test classes on the way too, after the epochs that validate; they choose nothing, and metrics.json
    names the best such epoch apart, as papers report it"""
    save_minutes: float = 10.0
    """a checkpoint is written after every epoch that takes longer than writing it, and this often within long ones"""

    def __post_init__(self) -> None:
        require_at_least(0, "train", epochs=self.epochs, seed=self.seed, validate_every=self.validate_every)
        require_at_least(0, "train", save_minutes=self.save_minutes)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    recall_at: tuple[int, ...] = (1, 2, 4, 8)
    """the K of Recall@K"""
    nmi_recipe: Literal["greedy", "random"] = "greedy"
    """how k-means is seeded for NMI: greedy k-means++ (scikit-learn's) or random images (faiss's); it moves the
    figure by points"""
    nmi_seeds: int = 3
    """k-means seeds; NMI is their mean, with the spread beside it if there are two or more"""
    nmi_restarts: int = 1
    """k-means runs for each seed, of which the tightest counts; seeds show the spread, restarts lessen it"""
    refine: Literal[
        "none", "k-reciprocal", "nearest", "k-means", "ward", "spectral", "birch", "dbscan", "optics"
    ] = "none"
    """message passing at test time, by intrabatch evaluate: how each image's small batch of neighbours is built"""
    refine_size: int = 7
    """images in such a batch, the image itself included"""
    refine_clusters: int | None = None
    """clusters of k-means, ward, spectral and birch; none for the paper's 900, or a quarter of the images if fewer"""
    batch: int | None = None
    """images embedded at a time; none for 128 on a CPU and 512 on a GPU"""

    def __post_init__(self) -> None:
        ordered = bool(self.recall_at) and min(self.recall_at) >= 1
        require(ordered, f"evaluation.recall_at is {list(self.recall_at)}; expected whole numbers from 1")
        require_at_least(1, "evaluation", nmi_seeds=self.nmi_seeds, nmi_restarts=self.nmi_restarts, batch=self.batch)
        require_at_least(2, "evaluation", refine_size=self.refine_size, refine_clusters=self.refine_clusters)


@dataclass(frozen=True, kw_only=True)
class Config:
    recipe: str = "custom"
    """the recipe this configuration started from"""
    data: DataConfig = field(default_factory=DataConfig)
    """where images come from and how classes are split"""
    image: ImageConfig = field(default_factory=ImageConfig)
    """size and augmentation"""
    batch: BatchConfig = field(default_factory=BatchConfig)
    """P classes x K images"""
    model: ModelConfig = field(default_factory=ModelConfig)
    """backbone and embedding"""
    messages: MessagesConfig = field(default_factory=MessagesConfig)
    """message passing over the batch"""
    loss: LossConfig = field(default_factory=LossConfig)
    """what is minimised"""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """how"""
    train: TrainConfig = field(default_factory=TrainConfig)
    """how long and on what"""
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    """what is measured"""

    def __post_init__(self) -> None:
        divides = self.model.dim % self.messages.heads == 0
        fitting = ", ".join(str(m) for m in range(1, 17) if self.model.dim % m == 0)
        require(
            divides or not self.loss.messages,
            f"messages.heads is {self.messages.heads}, but must divide model.dim = {self.model.dim}; "
            f"choose from: {fitting}",
        )
