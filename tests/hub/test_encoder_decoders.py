"""Encoder-decoders, composites of any two among them: in transformers, and in files of all ages."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import change_settings, change_tensors, copy_of, save_tiny
from variants import check_gradients, check_outputs, check_variant, models

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.describe import config_values, describe
from jaxformer.hub.fields import resolved
from jaxformer.hub.flax_format import sinusoids
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
    ours = check_variant(tmp_path, "speech-encoder-decoder", values, padding="right")
    assert not ours.config.projects


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


# What files of v4 say (first), and what v5 makes of them when it saves them.
SPELLINGS = {
    "v4": (["scale_decoder_outputs"], {"tie_word_embeddings": False}),
    "v5": ([], {"tie_word_embeddings": True, "scale_decoder_outputs": False}),
}


@pytest.mark.parametrize("model_type", ["t5", "mt5", "umt5"])
@pytest.mark.parametrize(("without", "changes"), SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.slow
def test_an_output_table_in_the_file_is_used_whatever_is_said(
    model_type, without, changes, tmp_path
):
    folder = save_tiny(model_type, tmp_path / "model")
    own = np.random.default_rng(0).normal(size=(131, 48)).astype(np.float32)
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": own}))
    change_settings(folder, *without, **changes)
    ours, theirs = models(folder)
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, inputs)
    check_gradients(ours, theirs, inputs)
    save(ours, tmp_path / "export")
    check_outputs(*models(tmp_path / "export"), inputs)


@pytest.mark.parametrize("model_type", ["bart", "mbart", "marian", "pegasus"])
@pytest.mark.quick("bart")
def test_a_bias_of_the_logits_may_be_missing_and_does_not_learn(model_type, tmp_path):
    folder = save_tiny(model_type, tmp_path)
    bias = "heads.language_model.bias"
    with_bias = load(folder)
    assert bias in with_bias.parameters
    assert bias not in with_bias.abstract_model.learning
    change_tensors(folder, lambda tensors: tensors.pop("final_logits_bias"))
    ours, theirs = models(folder)
    check_outputs(ours, theirs, example_inputs(ours.checkpoint))


def test_positions_in_a_translators_file_must_be_sinusoids(tmp_path):
    folder, name = save_tiny("marian", tmp_path, "MTModel"), "model.encoder.embed_positions.weight"
    config = load(folder).config
    table = np.array(sinusoids(19, config.model_dim, "half"))
    change_tensors(folder, lambda tensors: tensors.update({name: table}))
    load(folder)
    table[3, 5] += 0.1
    change_tensors(folder, lambda tensors: tensors.update({name: table}))
    with pytest.raises(DataError, match=f"{name} differs from the sinusoids"):
        load(folder)


@pytest.mark.parametrize("model_type", ["t5", "bart", "mbart", "marian", "m2m_100"])
@pytest.mark.quick("mbart")
def test_inputs_of_the_decoder_are_made_of_labels(model_type, tmp_path):
    ours, theirs = models(save_tiny(model_type, tmp_path))
    inputs = example_inputs(ours.checkpoint, "right")
    shifted = {name: x for name, x in inputs.items() if not name.startswith("decoder")}
    # The last that counts is what mBART moves to the front.
    shifted["labels"][:, 3] = 9
    shifted["labels"][1, -3:] = -100
    check_outputs(ours, theirs, shifted)


@pytest.mark.parametrize("model_type", ["bart", "mbart"])
@pytest.mark.more
@pytest.mark.quick("bart")
def test_without_labels_the_inputs_are_repeated(model_type, tmp_path):
    ours, theirs = models(save_tiny(model_type, tmp_path))
    inputs = example_inputs(ours.checkpoint)
    check_outputs(ours, theirs, {"input_ids": inputs["input_ids"]})


def test_others_repeat_nothing(tmp_path):
    ours = load(save_tiny("t5", tmp_path))
    ids = example_inputs(ours.checkpoint)["input_ids"]
    with pytest.raises(DataError, match="decoder_input_ids"):
        forward(ours, {"input_ids": ids})
