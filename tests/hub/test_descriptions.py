"""A config.json is understood or refused; activations, fields and folders both ways."""

import json
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.functional import RoPE
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values, describe, describe_model
from jaxformer.hub.fields import (
    ConfigMap,
    Flag,
    Number,
    Switch,
    numbers,
    read_activation,
    resolved,
    write_activation,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.steps import forward
from jaxformer.hub.tasks.classes import Task
from jaxformer.io.model_files import SIDE_FILES, copy_side_files
from jaxformer.models import (
    Classification,
    DecoderConfig,
    Dense,
    LanguageModel,
    TokenClassification,
)
from jaxformer.nn import PostNorm, PreNorm
from jaxformer.zoo import FORMATS
from jaxformer.zoo.common.bert_like import bert
from jaxformer.zoo.common.llama_like import llama
from jaxformer.zoo.whisper import whisper

REST = {"vocab_size": 9, "model_dim": 8, "num_heads": 4, "mlp_dim": 8}
SMALL = llama(2, 48, 6, 56, vocab_size=131, num_kv_heads=2, heads=(LanguageModel(),))


def test_what_is_neither_taken_nor_harmless_is_ignored():
    values = {"a": 1, "b": 2, "dtype": "float32", "c": None, "own": 3, "huge": 10**30}
    hf_config = HFConfig(values)
    assert (hf_config.take("a"), hf_config.number("z", None), hf_config.last) == (1, None, "a = 1")
    section = hf_config.section("part", {"a": 1, "d": 4})
    section.take("a")
    section.completed({"a": 1, "d": 4, "e": 5}).finish()
    hf_config.finish(harmless=("ow*",))
    assert hf_config.ignored == {"part.a": 1, "part.d": 4, "part.e": 5, "b": 2, "huge": 10**30}


@pytest.mark.parametrize(
    ("name", "neutral", "other"), [("token_classification_bias", True, 2), ("head_dim", 0, 16)]
)
def test_what_transformers_asks_of_every_file_is_never_ignored(name, neutral, other):
    HFConfig({name: neutral}).finish()
    with pytest.raises(ConfigError, match=f"{name} = {other}"):
        HFConfig({name: other}).finish()


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda s: s.take("z"), "the field 'z' is missing"),
        (lambda s: s.number("b"), "b = True: must be a number"),
        (lambda s: s.number("n"), "n = None: must be a number"),
        (
            lambda s: s.choose("act", {"silu": 1}),
            r"act = 'sillu' is not supported: .*; did you mean 'silu'",
        ),
        (lambda s: s.choose("list", {"silu": 1}), r"list = \[1\] is not supported: must be one"),
        (lambda s: s.expect("act", "a", "b"), "act = 'sillu' is not supported: only 'a' or 'b'"),
        (lambda s: Flag("ours", "act").read(s), "act = 'sillu': must be true or false"),
        (lambda s: Number("ours", "act").read(s), "act = 'sillu': must be a number"),
    ],
)
def test_what_is_refused(action, message):
    values = {"b": True, "n": None, "act": "sillu", "list": [1]}
    with pytest.raises(ConfigError, match=f"config.json: {message}"):
        action(HFConfig(values))


def test_fields_both_ways():
    names = {"num_layers": "n_layer", "num_kv_heads": "n_kv", "head_dim": "d"}
    sizes = numbers(names, {"n_kv": None, "d": None})
    biases = Flag("self_attention.bias", "bias", also=("feed_forward.bias",))
    switch = Switch("residual", "post", False, on=PostNorm(), off=PreNorm())
    table = ConfigMap(partial(DecoderConfig, **REST), (*sizes, biases, switch))
    hf_config = HFConfig({"n_layer": 2, "n_kv": None, "bias": True, "post": True})
    config = table.read(hf_config)
    assert (config.num_layers, config.num_kv_heads, config.head_dim) == (2, None, None)
    assert config.self_attention.bias
    assert config.feed_forward.bias
    assert config.residual == PostNorm()
    written = {"n_layer": 2, "n_kv": 4, "d": 2, "bias": True, "post": True}
    assert table.write(config) == written
    assert resolved(table.read(HFConfig(written))) == resolved(config)


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "tanh"])
def test_activations_both_ways(name):
    assert read_activation(HFConfig({"act": write_activation(name)}), "act", "gelu") == name


def test_a_model_of_ours_is_described_and_read_again():
    checkpoint = describe(SMALL, FORMATS.values(), {"eos_token_id": 5})
    assert (checkpoint.model_format.model_type, checkpoint.architecture.name) == (
        "llama",
        "LlamaForCausalLM",
    )
    again = read_checkpoint(HFConfig(config_values(checkpoint)), FORMATS)
    assert again.config == replace(SMALL, head_dim=8)
    assert again.hf_config.values["eos_token_id"] == 5


def test_a_model_that_no_system_is_can_be_run_and_not_exported():
    config = bert(2, 48, 6, position=RoPE(), heads=(TokenClassification(num_labels=3),))
    with pytest.raises(ConfigError, match="the nearest: "):
        describe(config, FORMATS.values())
    checkpoint = describe_model(config, FORMATS.values(), {})
    assert checkpoint.config == config
    with pytest.raises(ConfigError, match="no known system"):
        checkpoint.model_format.config_map.write(config)


def test_what_travels_is_copied_as_it_is(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir(), new.mkdir()
    for name in (*SIDE_FILES, "pytorch_model.bin"):
        (old / name).write_bytes(json.dumps(name).encode() + b" \r\n\xff")
    copy_side_files(old, new)
    copy_side_files(None, new)
    assert sorted(item.name for item in new.iterdir()) == sorted(SIDE_FILES)
    assert all((new / name).read_bytes() == (old / name).read_bytes() for name in SIDE_FILES)


def test_a_whisper_of_ones_own_is_a_whisper():
    # Neither half has a format alone.
    config = whisper(2, 16, 2, num_decoder_layers=1, vocab_size=60, num_mel_bins=6)
    values = describe(config, FORMATS.values(), {"eos_token_id": 5}).hf_config.values
    assert values["model_type"] == "whisper"
    assert (values["encoder_layers"], values["decoder_layers"]) == (2, 1)
    head = Classification(num_labels=3, pooling="late", dense=Dense(None, width=7))
    alone = config.encoder.with_fields(heads=(head,))
    values = describe(alone, FORMATS.values()).hf_config.values
    assert values["architectures"] == ["WhisperForAudioClassification"]
    assert values["classifier_proj_size"] == 7


def test_a_capacity_of_experts_is_left_out_with_a_warning(tmp_path, caplog):
    model = jaxformer.load(save_tiny("mixtral", tmp_path / "theirs"))
    config = model.config.with_fields(**{"feed_forward.capacity": 2.0})
    jaxformer.save(replace(model, config=config), tmp_path / "ours")
    assert "capacity = 2" in caplog.text


class FirstStateTask(Task):
    """A task of a user's code."""

    def outputs(self, model, states, inputs, hf_config):
        return {"first": states.hidden[:, 0]}


def test_a_task_of_ones_own_needs_no_key(tmp_path):
    model = jaxformer.load(save_tiny("bert", tmp_path))
    architecture = replace(model.checkpoint.architecture, task=FirstStateTask())
    checkpoint = replace(model.checkpoint, architecture=architecture)
    for key in (None, jax.random.key(0)):
        found = forward(
            model.model, checkpoint, {"input_ids": np.arange(12).reshape(2, 6)}, key=key
        )
        np.testing.assert_array_equal(found["first"], found["last_hidden_state"][:, 0])
