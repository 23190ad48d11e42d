"""Some of another run's layers: which rows of its stacks become which of this model's."""

import re
from dataclasses import replace

import chex
import numpy as np
import pytest
from tiny_models import random_parameters, tiny, tiny_encoder, tiny_encoder_decoder
from tiny_run import tiny_config
from train_steps import on_devices, program_of
from transfers import transfer

from jaxformer.checkpoints.saved_run import write_run
from jaxformer.config import Config, validate
from jaxformer.errors import ConfigError
from jaxformer.models import Classification
from jaxformer.models.lora import LoRA, is_factor

pytestmark = pytest.mark.more

DEEP = {
    "plain": tiny(num_layers=6, tie_embeddings=False),
    "windowed": tiny(num_layers=6, windows=(3, None)),
    "some rotate": tiny(num_layers=6, windows=(None, None), rope_layers=(True, False)),
    "encoder": tiny_encoder(num_layers=6),
    "shared": tiny_encoder(num_layers=4, layer_repeats=2),
    "encoder-decoder": tiny_encoder_decoder(num_layers=6, num_decoder_layers=6),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run folder of each model, with random parameters."""
    folders = {}
    for name, model in DEEP.items():
        folders[name] = tmp_path_factory.mktemp("saved") / "run"
        write_run(folders[name], Config(model=model), 1, random_parameters(model))
    return folders


def taken(saved, name, model, layers, mesh=(1, 1, 1), **settings):
    program = program_of(model, mesh, **settings)
    shapes = program.abstract_model.shapes
    fresh = {key: np.zeros(shape.shape, np.float32) for key, shape in shapes.items()}
    return transfer(on_devices(program, fresh), saved[name], model, layers)


def layer(model, parameters, number):
    """The parameters of one layer, whatever kinds of layers take turns."""
    kinds = len(model.windows)
    block = re.compile(rf"(.*stack\.group)\.{number % kinds}\.(.*)")
    return {
        (found[1], found[2]): np.asarray(x)[number // kinds]
        for name, x in parameters.items()
        if (found := block.fullmatch(name)) and not is_factor(name)
    }


def assert_layers(model, parameters, name, layers):
    there = random_parameters(DEEP[name])
    for here, number in enumerate(layers):
        ours, theirs = layer(model, parameters, here), layer(DEEP[name], there, number)
        chex.assert_trees_all_equal(ours, theirs)
    for key, value in there.items():
        if ".stack." not in key:
            np.testing.assert_array_equal(parameters[key], value, err_msg=key)


CHOICES = [
    *(
        (name, {}, layers)
        for name in ("plain", "encoder", "encoder-decoder")
        for layers in ((0, 2, 4), (5, 0, 0), (3,), (0, 1, 2, 3, 4, 5))
    ),
    # A layer becomes one of its own kind.
    ("windowed", {"windows": (3, None)}, (0, 1)),
    ("windowed", {"windows": (3, None)}, (4, 1, 0, 5)),
    ("windowed", {"windows": (None,)}, (1, 3)),
    ("windowed", {"windows": (3,)}, (4, 0, 2)),
    ("windowed", {"windows": (None, 3)}, (5, 0)),
    ("windowed", {"windows": (3, None, None)}, (2, 1, 5)),
    # Layers that share their parameters may be taken apart.
    ("shared", {"layer_repeats": 1}, (0, 0, 1, 1)),
]


@pytest.mark.parametrize(
    ("name", "changes", "layers"), CHOICES, ids=[f"{row[0]} {row[2]}" for row in CHOICES]
)
@pytest.mark.quick("plain (0, 2, 4)", "encoder-decoder (5, 0, 0)", "windowed *", "shared *")
def test_layers_come_in_the_order_that_is_named(saved, name, changes, layers):
    sides = ("num_layers", "num_decoder_layers") if name == "encoder-decoder" else ("num_layers",)
    model = DEEP[name].with_fields(**dict.fromkeys(sides, len(layers)), **changes)
    parameters, report = taken(saved, name, model, layers)
    assert_layers(model, parameters, name, layers)
    assert not report.new
    assert not report.left
    assert f"layers taken there: {', '.join(map(str, layers))}" in report.report


def test_on_a_mesh_with_another_head_and_factors(saved):
    deep = DEEP["encoder"]
    model = replace(deep, num_layers=2, heads=(Classification(num_labels=5),), vocab_size=31)
    parameters, report = taken(saved, "encoder", model, (4, 1), mesh=(2, 1, 1), lora=LoRA(rank=2))
    for key, value in layer(deep, random_parameters(deep), 1).items():
        np.testing.assert_array_equal(layer(model, parameters, 1)[key], value)
    factors = [name for name in report.new if is_factor(name)]
    assert len(factors) == 4
    assert "new here: heads.label.output.bias, heads.label.output.kernel, 4 low-rank factors" in (
        report.report
    )
    assert any("masked_language_model" in name for name in report.left)


@pytest.mark.parametrize(
    ("name", "changes", "layers", "message"),
    [
        ("plain", {"num_layers": 2}, (0, 2, 4), r"names 3 layers, but the transformer of this mo"),
        ("plain", {"num_layers": 2}, (0, 6), r"no layer 6 in .*, whose transformer has layers 0 t"),
        ("plain", {"num_layers": 2}, (-1, 0), r"no layer -1 in .* has layers 0 to 5"),
        ("shared", {"num_layers": 4}, (0, 2), r"no layer 2 in .* has layers 0 to 1"),
        (
            "windowed",
            {"num_layers": 2},
            (1, 2),
            r"layer 1 there has global attention and would become layer 0 here, which has a window",
        ),
        ("windowed", {"num_layers": 2, "windows": (4, None)}, (0, 1), r"has a window of 4: choose"),
        ("some rotate", {"num_layers": 2}, (0, 2), r"layer 1 here, which has .* without positions"),
        ("encoder-decoder", {"num_layers": 2}, (0, 1), r"but the decoder of this model has 6"),
        ("plain", {"num_layers": 2, "mlp_dim": 16}, (0, 1), r"up.kernel has shape \(2, 20, 14\)"),
        (
            "plain",
            {"num_layers": 2, "feed_forward.bias": True},
            (0, 1),
            r"model.feed_forward.bias is False there, True here.*up.bias is missing there",
        ),
    ],
)
def test_choices_that_cannot_be(saved, name, changes, layers, message):
    with pytest.raises(ConfigError, match=message):
        taken(saved, name, DEEP[name].with_fields(**changes), layers)


def test_layers_need_a_run():
    with pytest.raises(ConfigError, match=r"init_layers .* name that model with --init-from"):
        validate(replace(tiny_config(), init_layers=(0,)), 1)
