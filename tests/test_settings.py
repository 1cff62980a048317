"""Settings: help from the source, YAML round trips, and every mistake in one line with the nearest right name."""

import dataclasses
import re

import pytest
import yaml

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
        ("optim.lerning_rate=1", "unknown key 'optim.lerning_rate'; did you mean 'learning_rate'?"),
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


def test_published_settings_are_those_of_the_paper():
    cub, cars = get_recipe("cub"), get_recipe("cars196")
    assert (cub.batch.classes, cub.batch.images, cub.loss.temperature) == (6, 9, 0.2)
    assert (cars.messages.steps, cars.messages.heads, cars.messages.head_input) == (2, 8, "all")
    assert yaml.safe_load(settings.as_yaml(get_recipe("sop")))["messages"]["heads"] == 8
    assert get_recipe("inshop").evaluation.recall_at == (1, 10, 20, 30, 40)
