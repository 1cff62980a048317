"""Settings: help from the source, YAML round trips, and every mistake in one line with the nearest right name."""

import dataclasses
import re

import pytest

from intrabatch import settings
from intrabatch.config import Config
from intrabatch.errors import ConfigError
from intrabatch.recipes import RECIPES, get_recipe

SECTIONS = [field for field in dataclasses.fields(Config) if field.name != "recipe"]


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_survives_yaml(name):
    config = get_recipe(name)
    assert config.recipe == name
    for text in (settings.as_yaml(config), settings.explained(config)):
        assert settings.update(Config(), settings.parse_yaml(text, "test")) == config


@pytest.mark.parametrize("section", SECTIONS, ids=lambda field: field.name)
def test_every_setting_says_what_it_means(section):
    kind = section.default_factory
    assert set(settings.fields_help(kind)) >= {field.name for field in dataclasses.fields(kind)}
    assert all(len(text) > 5 for text in settings.fields_help(kind).values())


def test_explained_holds_every_text():
    shown = " ".join(settings.explained(Config()).replace("#", " ").split())
    for section in SECTIONS:
        for text in settings.fields_help(section.default_factory).values():
            assert text in shown


def test_overrides():
    config = settings.override(
        Config(),
        ["train.epochs=5", "optim.learning_rate=1e-4", "loss.messages_temperature=none", "evaluation.recall_at=[1, 3]",
         "model.weights=none", "batch.redraw=true", "train.device=cpu"],
    )  # fmt: skip
    assert config.train.epochs == 5 and config.optim.learning_rate == 1e-4
    assert config.loss.messages_temperature is None and config.evaluation.recall_at == (1, 3)
    assert config.model.weights == "none" and config.batch.redraw is True


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.lerning_rate=1", "unknown key 'train.lerning_rate'; choose from: epochs, seed"),
        ("optim.lerning_rate=1", "unknown key 'optim.lerning_rate'; did you mean 'optim.learning_rate'?"),
        ("train.epoch=1", "unknown key 'train.epoch'; did you mean 'train.epochs'?"),
        ("trian.epochs=1", "unknown key 'trian'; did you mean 'train'?"),
        ("epochs=1", "unknown key 'epochs'; did you mean 'train.epochs'?"),
        ("train.epochs=many", "train.epochs is 'many'; expected a whole number"),
        ("train.epochs=1.5", "train.epochs is 1.5; expected a whole number"),
        ("train.epochs=true", "train.epochs is True; expected a whole number"),
        ("optim.learning_rate=fast", "optim.learning_rate is 'fast'; expected a number"),
        ("batch.redraw=perhaps", "batch.redraw is 'perhaps'; expected true or false"),
        ("model.pooling=mean", "model.pooling is 'mean'; choose from: avg, max, avg+max, gem, native"),
        ("optim.optimizer=radm", "optim.optimizer is 'radm'; did you mean 'radam'?"),
        ("evaluation.recall_at=4", "evaluation.recall_at is 4; expected a list such as [1, 2, 4]"),
        ("train=5", "train is a section, got 5; set one of its keys: epochs, seed"),
        ("train.epochs", "--set train.epochs: expected KEY=VALUE"),
        ("messages.heads=3", "messages.heads is 3, but must divide model.dim = 512; choose from: 1, 2, 4"),
        ("batch.classes=1", "batch.classes is 1; expected at least 2"),
        ("image.resize=100", "image.resize is 100; expected at least image.crop = 227"),
        ("loss.temperature=0", "loss.temperature is 0.0; expected above 0"),
        ("train.epochs=-1", "train.epochs is -1; expected at least 0"),
        ("train.seed=-1", "train.seed is -1; expected at least 0"),
        ("data.split_seed=-1", "data.split_seed is -1; expected at least 0"),
        ("messages.heads=0", "messages.heads is 0; expected at least 1"),
        ("messages.dropout=2", "messages.dropout is 2.0; expected 0 to 1"),
        ("image.flip=-1", "image.flip is -1.0; expected 0 to 1"),
        ("loss.messages_temperature=0", "loss.messages_temperature is 0.0; expected above 0"),
        ("optim.weight_decay=-1", "optim.weight_decay is -1.0; expected at least 0"),
        ("optim.learning_rate=inf", "optim.learning_rate is 'inf'; expected a number"),
        ("optim.learning_rate=.inf", "optim.learning_rate is inf; expected a number"),
        ("train.epochs=.inf", "train.epochs is inf; expected a whole number"),
        ("evaluation.batch=0", "evaluation.batch is 0; expected at least 1"),
        ("data.val_fraction=1", "data.val_fraction is 1.0; expected 0 up to under 1"),
        ("evaluation.nmi_restarts=0", "evaluation.nmi_restarts is 0; expected at least 1"),
        ("evaluation.refine_size=1", "evaluation.refine_size is 1; expected at least 2"),
        ("evaluation.refine_clusters=-3", "evaluation.refine_clusters is -3; expected at least 2"),
        ("evaluation.refine=best", "evaluation.refine is 'best'; choose from: none, k-reciprocal, nearest"),
        ("optim.milestones=[-1]", "optim.milestones is [-1]; expected epochs from 1"),
        ("loss.group_steps=0", "loss.group_steps is 0; expected at least 1"),
        ("messages.steps=-1", "messages.steps is -1; expected at least 1 (set loss.messages=0 for no messages)"),
        ("train.save_minutes=-1", "train.save_minutes is -1.0; expected at least 0"),
        ("data.glyph_classes=-3", "data.glyph_classes is -3; expected at least 2"),
        ("data.glyph_images=0", "data.glyph_images is 0; expected at least 2"),
        ("data.glyph_size=3", "data.glyph_size is 3; expected at least 16"),
        ("train.protocol=best", "train.protocol is 'best'; choose from: final, validation, as-published"),
    ],
)
def test_a_mistake_is_one_line(assignment, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        settings.override(Config(), [assignment])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("train:\n  epochs: [", "a.yaml line 2: not readable as YAML"),
        ("- 1", "a.yaml: expected settings as 'section:' and 'key: value', got list"),
    ],
)
def test_unreadable_yaml_names_the_place(text, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        settings.parse_yaml(text, "a.yaml")


def test_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown recipe 'glyph'; did you mean 'glyphs'\?"):
        get_recipe("glyph")


PUBLISHED = {  # P, K, learning rate, weight decay, T, L, M, what the head reads, K of Recall@K
    "cub_paper": (6, 9, 1.5636637e-4, 6.06e-6, 0.2, 1, 2, "last", (1, 2, 4, 8)),
    "cars196": (10, 7, 3.668324e-4, 2.55e-9, 0.11111, 2, 8, "all", (1, 2, 4, 8)),
    "sop": (15, 6, 2.4724717e-4, 2.77e-13, 0.60469, 1, 8, "last", (1, 10, 100, 1000)),
    "inshop": (14, 4, 1.1265975e-4, 1.06e-7, 0.18591, 1, 4, "last", (1, 10, 20, 30, 40)),
}


@pytest.mark.parametrize("larger", [False, True])
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings_are_those_of_the_paper(name, larger):
    config = get_recipe(f"{name}_256" if larger else name)
    batch, optim, messages, loss = config.batch, config.optim, config.messages, config.loss
    found = (batch.classes, batch.images, optim.learning_rate, optim.weight_decay, loss.temperature)
    found += (messages.steps, messages.heads, messages.head_input, config.evaluation.recall_at)
    assert found == PUBLISHED[name]
    assert (optim.optimizer, optim.schedule, optim.milestones, optim.head_factor) == ("radam", "step", (30,), 1)
    assert (config.train.epochs, config.train.protocol, batch.redraw) == (70, "final", name == "cub_paper")
    assert (loss.auxiliary, loss.messages, loss.smoothing, loss.messages_temperature) == (1, 1, 0.1, None)
    model, image = config.model, config.image
    assert (model.backbone, model.dim, model.pooling, model.batch_norm) == ("resnet50", 512, "max", "trained")
    assert (image.crop, image.resize) == ((256, 288) if larger else (227, 256))
    assert (image.min_scale, image.max_scale, image.flip, image.erase, image.colour) == (0.08, 1, 0.5, 0.5, 0)
    assert config.data.source == name.removesuffix("_paper")
