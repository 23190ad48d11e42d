"""What encoder-decoders can say besides what their small models say; what their decoders read."""

import numpy as np
import pytest
from saved_folders import change_settings, change_tensors, save_tiny
from variants import check_gradients, check_outputs, check_variant, models

from jaxformer.errors import DataError
from jaxformer.hub.describe import config_values, describe
from jaxformer.hub.flax_format import sinusoids
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

VARIANTS = {
    "t5 with a gate": ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 4}),
    "t5 with the approximation of gelu": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "t5 with gelu itself": ("t5", {"feed_forward_proj": "gelu", "tie_word_embeddings": False}),
    "mt5 without a gate": ("mt5", {"feed_forward_proj": "relu"}),
    "bart of its published files": (
        "bart",
        {"scale_embedding": False, "num_hidden_layers": 3, "normalize_embedding": True},
    ),
    "marian with two tables": ("marian", {"share_encoder_decoder_embeddings": False}),
}


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.slow
def test_variants(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes)


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


@pytest.mark.parametrize("kind", ["bart", "marian", "blenderbot-small"])
@pytest.mark.parametrize("head", ["ForCausalLM", "Model"])
@pytest.mark.quick("ForCausalLM-bart", "Model-marian")
def test_a_class_is_described_as_that_of_its_file(kind, head, tmp_path):
    """As after training, when only our configuration and the old file are left."""
    ours = load(save_tiny(kind, tmp_path, head))
    file = ours.checkpoint.hf_config
    again = describe(ours.config, FORMATS.values(), file.given)
    assert again.architecture == ours.checkpoint.architecture
    assert config_values(again) == config_values(ours.checkpoint) == file.given
