"""T5Gemma: what its config.json may say, and an encoder and a decoder of different sizes."""

from dataclasses import replace

import pytest
from published_files import FILES
from saved_folders import save_tiny
from variants import check_gradients, check_outputs, check_variant, models

from jaxformer.errors import ConfigError
from jaxformer.functional import YaRN
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.fields import FULL, SLIDING
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import EncoderConfig
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS, SYSTEMS


def tiny(encoder=None, decoder=None, **whole):
    """The fields of the small model, with others of its parts."""
    parts = {"encoder": encoder or {}, "decoder": decoder or {}}
    return whole | {name: TINY["t5gemma"][name] | own for name, own in parts.items()}


PLAIN = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": False}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
VARIANTS = {
    "untied": tiny(tie_word_embeddings=False),
    "neither caps nor biases": tiny(PLAIN, PLAIN),
    "windows elsewhere": tiny(
        {"layer_types": [FULL, SLIDING] * 2, "sliding_window": 3}, {"layer_types": [FULL] * 2}
    ),
    "a stretched encoder": tiny({"rope_parameters": YARN}, {"query_pre_attn_scalar": 9}),
}


@pytest.mark.torch
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.slow
def test_variants(changes, tmp_path):
    def inputs(checkpoint):  # beyond every window
        return example_inputs(checkpoint, "right", length=15)

    ours = check_variant(tmp_path, "t5gemma", changes, inputs=inputs)
    if "rope_parameters" in changes["encoder"]:
        scaling = ours.config.encoder.position.scaling
        assert scaling in (YaRN(4.0, 8), ours.config.decoder.position.scaling)


def unmasked(checkpoint, padding="right"):
    """Inputs with padding of which no mask tells."""
    inputs = example_inputs(checkpoint, padding, length=15)
    return {name: x for name, x in inputs.items() if not name.endswith("attention_mask")}


# Longer than any padding: of a token that sees none, transformers makes the mean of all.
WIDE = tiny({"sliding_window": 11}, {"sliding_window": 11})


@pytest.mark.torch
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.quick("right")
def test_without_a_mask_the_encoder_hides_padding_and_the_decoder_reads_all(padding, tmp_path):
    ours, theirs = models(save_tiny("t5gemma", tmp_path, **WIDE))
    inputs = unmasked(ours.checkpoint, padding)
    assert (inputs["input_ids"] == 3).any(axis=1).sum() > 1
    check_outputs(ours, theirs, inputs)


ENCODER_ALONE = {"is_encoder_decoder": False}


@pytest.mark.torch
@pytest.mark.parametrize("changes", [{}, ENCODER_ALONE], ids=["whole", "encoder alone"])
@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForTokenClassification"])
@pytest.mark.slow
def test_classes_for_labels(kind, changes, tmp_path):
    ours, theirs = models(save_tiny("t5gemma", tmp_path, kind, **WIDE, **changes))
    padded = example_inputs(ours.checkpoint, "left", length=15)
    for inputs in (padded, unmasked(ours.checkpoint)):
        check_outputs(ours, theirs, inputs, hidden_states=False)
    check_gradients(ours, theirs, padded)
    values = describe(ours.config, FORMATS.values(), {"num_labels": 2}).hf_config.values
    assert values["architectures"] == [f"T5Gemma{kind}"]
    assert values.get("is_encoder_decoder", True) == changes.get("is_encoder_decoder", True)


@pytest.mark.torch
def test_the_encoder_alone(tmp_path):
    folder = tmp_path / "encoder"
    save_random("t5gemma", "T5GemmaEncoderModel", folder, **WIDE, **ENCODER_ALONE)
    ours, theirs = models(folder)
    assert isinstance(ours.config, EncoderConfig)
    check_outputs(ours, theirs, unmasked(ours.checkpoint))
    save(ours, tmp_path / "again")
    again = load(tmp_path / "again")
    assert again.config == ours.config
    assert Reference(tmp_path / "again", "T5GemmaEncoderModel")
    described = describe(ours.config, FORMATS.values())
    assert described.architecture.name == "T5GemmaEncoderModel"


@pytest.mark.torch
@pytest.mark.parametrize("name", ["t5gemma-2b-2b", "t5gemma-9b-2b"])
def test_transformers_understands_what_we_write_of_our_own(name):
    from transformers import AutoConfig

    config = SYSTEMS[name].config
    checkpoint = describe(config, FORMATS.values())
    assert checkpoint.model_format.model_type == "t5gemma"
    found = AutoConfig.for_model(**checkpoint.hf_config.values)
    assert found.encoder.hidden_size == config.encoder.model_dim
    assert found.encoder.sliding_window == found.decoder.sliding_window == 4096
    assert found.decoder.cross_attention_hidden_size == config.encoder.model_dim


def test_examples_have_labels_of_the_decoders_vocabulary():
    values = FILES["t5gemma-9b-2b"] | tiny(vocab_size=256_000)
    inputs = example_inputs(read_checkpoint(HFConfig(values), FORMATS))
    assert 0 < inputs["labels"].max() < TINY["t5gemma"]["vocab_size"]


def test_what_cannot_be_said_is_named():
    config = SYSTEMS["t5gemma-2b-2b"].config
    other = replace(config, encoder=config.encoder.with_fields(**{"self_attention.clip": 3.0}))
    with pytest.raises(ConfigError, match="no known system"):
        describe(other, FORMATS.values())
