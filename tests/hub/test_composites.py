"""Composite models: any encoder with any decoder, compared with transformers and written back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_tensors, copy_of, save_tiny
from variants import check_variant

from jaxformer.errors import ConfigError
from jaxformer.hub.describe import config_values, describe
from jaxformer.hub.fields import resolved
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.table import measure
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

DECODES = {"is_decoder": True, "add_cross_attention": True}
PAIRS = {
    "bert2gpt2": ("encoder-decoder", "bert", "gpt2"),
    "roberta2roberta": ("encoder-decoder", "roberta", "roberta"),
    "roberta2gpt2": ("encoder-decoder", "roberta", "gpt2"),
    "electra2ernie": ("encoder-decoder", "electra", "ernie"),
    "roformer2bert": ("encoder-decoder", "roformer", "bert"),
    "distilbert2electra": ("encoder-decoder", "distilbert", "electra"),
    "vit2bert": ("vision-encoder-decoder", "vit", "bert"),
    "deit2roberta": ("vision-encoder-decoder", "deit", "roberta"),
    "wav2vec2bert": ("speech-encoder-decoder", "wav2vec2", "bert"),
    "bert2bart": ("encoder-decoder", "bert", "bart"),
    "vit2pegasus": ("vision-encoder-decoder", "vit", "pegasus"),
    "wav2vec2mbart": ("speech-encoder-decoder", "wav2vec2", "mbart"),
    "hubert2gpt2": ("speech-encoder-decoder", "hubert", "gpt2"),
}


def part(kind, **changes):
    """The fields of a part in config.json."""
    return {"model_type": kind, **TINY[kind], **changes}


def composite(encoder, decoder, **changes):
    """The fields of config.json; the decoder is narrower than most encoders."""
    return {
        "encoder": part(encoder),
        "decoder": part(decoder, **DECODES, vocab_size=113, **changes),
        "pad_token_id": 3,
        "decoder_start_token_id": 7,
    }


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.slow
def test_equal_in_transformers(pair, tmp_path, monkeypatch):
    kind, encoder, decoder = PAIRS[pair]
    monkeypatch.setitem(TINY, kind, composite(encoder, decoder))
    row = measure(FORMATS[kind], FORMATS[kind].architectures[0], tmp_path)
    assert not row.wrong, row
    assert row.agreement == 1.0, row
    assert row.exported, row
    assert not row.missing, row


@pytest.mark.slow
def test_a_speech_encoder_with_an_adapter(tmp_path):
    """Its frames are fewer, and as wide as the decoder's states."""
    values = composite("wav2vec2", "bert")
    adapter = {"add_adapter": True, "num_adapter_layers": 2}
    values["encoder"] |= adapter | {"output_hidden_size": values["decoder"]["hidden_size"]}
    ours = check_variant(tmp_path / "model", "speech-encoder-decoder", values, padding="right")
    assert not ours.config.projects
    save(load(tmp_path / "model", dtype=None), tmp_path / "again")
    again, before = (tmp_path / x / "model.safetensors" for x in ("again", "model"))
    assert again.read_bytes() == before.read_bytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save_tiny("encoder-decoder", tmp_path_factory.mktemp("composite") / "model")


def changed(saved, target, part=None, /, **changes):
    """A copy of the model with other values in config.json, or in that of a part."""
    folder = copy_of(saved, target)
    values = json.loads((folder / "config.json").read_text())
    (values if part is None else values[part]).update(changes)
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_tokens_of_the_decoder_stand_in_for_those_of_the_whole(saved, tmp_path):
    folder = changed(saved, tmp_path / "a", pad_token_id=None, decoder_start_token_id=None)
    model = load(changed(folder, tmp_path / "b", "decoder", pad_token_id=9, bos_token_id=8))
    assert model.checkpoint.hf_config.values["pad_token_id"] == 9
    assert model.checkpoint.hf_config.values["bos_token_id"] == 8
    save(model, tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_text() == (
        tmp_path / "b" / "config.json"
    ).read_text()
    with pytest.raises(ConfigError, match="decoder_start_token_id = None"):
        forward(model, {"input_ids": [[1, 2]], "labels": [[1, 2]]})


@pytest.mark.slow
def test_files_without_the_unused_pooler(saved, tmp_path):
    folder = copy_of(saved, tmp_path / "model")
    change_tensors(
        folder, lambda tensors: [tensors.pop(x) for x in list(tensors) if ".pooler." in x]
    )
    inputs = example_inputs(load(saved).checkpoint)
    whole, without = forward(load(saved), inputs), forward(load(folder), inputs)
    np.testing.assert_array_equal(whole["logits"], without["logits"])


def test_a_model_without_a_file_is_described_and_read_again(saved, tmp_path):
    """Which systems its parts are of follows from their configurations."""
    model = load(saved)
    config = model.config.with_fields(dropout=0.25, compute_dtype="float32")
    checkpoint = describe(config, FORMATS.values(), {"pad_token_id": 5})
    made = Pretrained(config, model.parameters, described_by(checkpoint))
    save(made, tmp_path / "made")
    again = load(tmp_path / "made")
    assert resolved(again.config) == resolved(config)
    inputs = example_inputs(model.checkpoint, "right")
    np.testing.assert_array_equal(
        forward(again, inputs)["logits"], forward(model, inputs)["logits"]
    )
    assert checkpoint.hf_config.values["decoder"]["is_decoder"]


def test_a_part_that_changed_keeps_its_other_fields(saved):
    model = load(saved)
    encoder = model.config.encoder.with_fields(dropout=0.3)
    config = model.config.with_fields(encoder=encoder)
    values = config_values(replace(model.checkpoint, config=config))
    before = model.checkpoint.hf_config.given
    assert values["encoder"] == before["encoder"] | {"hidden_dropout_prob": 0.3}
    assert values["decoder"] == before["decoder"]


def test_labels_make_the_inputs_of_the_decoder(saved):
    """Ids that stand for no label are padding, which no token sees."""
    labels = np.random.default_rng(0).integers(6, 100, (2, 7))
    labels[0, 3:5], labels[1, 5:] = -100, -100
    inputs = {"input_ids": np.arange(6, 16).reshape(2, 5), "labels": labels}
    ours = forward(load(saved), inputs)
    theirs = Reference(saved, "EncoderDecoderModel").outputs(inputs)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=2e-5)
    np.testing.assert_allclose(ours["logits"][0, 0], theirs["logits"][0, 0], rtol=1e-4, atol=1e-5)
