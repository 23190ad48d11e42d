"""Composite models: two separate stacks that read, learn and decode together."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from family_cases import FAMILIES
from tiny_models import batch_for, random_parameters, scores_of, structure_of, tiny, tiny_composite

from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.functional.masks import KeyPadding
from jaxformer.models import DecoderConfig, LanguageModel
from jaxformer.models.lora import AbstractLoraModel, LoRA
from jaxformer.nn import DotProductCrossAttention
from jaxformer.nn.cache import CacheShape

pytestmark = pytest.mark.more

TEXT, CAPTIONS = FAMILIES["bert2gpt2"], FAMILIES["captions"]
BOTH = pytest.mark.parametrize("config", [TEXT, CAPTIONS], ids=["text", "captions"])


def model_of(config):
    return structure_of(config).module(random_parameters(config))


@BOTH
@pytest.mark.quick("captions")
def test_cached_decoding_is_the_full_pass(config):
    batch = batch_for(config, rows=3)

    @jax.jit
    def both_ways(parameters):
        model = structure_of(config).module(parameters)
        mask = KeyPadding(batch["segments"] > 0) if "segments" in batch else None
        encoded, tokens = model.encode(batch[config.required[0]]), batch["decoder_inputs"]
        whole = model.decode(tokens, encoded, encoder_mask=mask)
        shape = CacheShape(3, capacity=8, chunk=2, storage="float32")
        cache, steps = model.init_cache(shape, encoded, mask), []
        for chunk in (tokens[:, :2], tokens[:, 2:3], tokens[:, 3:]):
            states, cache = model.step(chunk, cache)
            steps.append(states)
        return model.logits(jnp.concatenate(steps, axis=1)), model.logits(whole)

    actual, expected = both_ways(random_parameters(config))
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def test_padding_of_the_source_changes_nothing():
    parameters, batch = random_parameters(TEXT), batch_for(TEXT, rows=3)
    changed = batch | {"inputs": np.where(batch["segments"] > 0, batch["inputs"], 7)}
    actual, expected = (scores_of(TEXT, parameters, each) for each in (changed, batch))
    np.testing.assert_array_equal(actual["language_model"], expected["language_model"])


@pytest.mark.slow
def test_only_the_unused_pooler_learns_nothing():
    config = tiny_composite(TEXT.encoder.with_fields(pooler="tanh"))
    batch = batch_for(config, rows=4)

    def loss(parameters):
        sums = structure_of(config).module(parameters).loss(batch)[1]
        return sums["language_model"].loss

    gradients = jax.jit(jax.grad(loss))(random_parameters(config))
    still = {name for name, array in gradients.items() if not np.abs(array).max() > 1e-6}
    # The keys' biases shift all scores of a row alike.
    assert {name for name in still if not name.endswith("key.bias")} == {
        "encoder.pooler.bias",
        "encoder.pooler.kernel",
    }


def test_fields_are_those_of_both_or_of_one():
    config = CAPTIONS.with_fields(compute_dtype="bfloat16", interpolate_positions=True)
    assert {stack.compute_dtype for stack in config.stacks} == {"bfloat16"}
    assert config.encoder.interpolate_positions
    assert config.with_fields(heads=()).decoder.heads == ()
    other = config.with_fields(decoder=CAPTIONS.decoder, compute_dtype="float32")
    assert other.stacks == (config.encoder.with_fields(compute_dtype="float32"), CAPTIONS.decoder)
    with pytest.raises(ConfigError, match=r"scan_layer: neither .* did you mean 'scan_layers'"):
        CAPTIONS.with_fields(scan_layer=True)


def test_the_projection_is_there_where_widths_differ():
    names = structure_of(TEXT).shapes
    assert names["projection.kernel"].shape == (20, 16)
    own = TEXT.with_fields(decoder=replace(TEXT.decoder, encoder_dim=20))
    assert not any(name.startswith("projection") for name in structure_of(own).shapes)
    key = "decoder.transformer.stack.group.0.sublayers.1.attention.key.kernel"
    assert structure_of(own).shapes[key].shape[1] == 20


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ConfigError, match=r"model\.decoder\.cross_attention = None"):
        replace(TEXT, decoder=tiny())
    with pytest.raises(ConfigError, match=r"model\.encoder\.heads"):
        replace(TEXT, encoder=TEXT.encoder.with_fields(heads=(LanguageModel(),)))
    with pytest.raises(ConfigError, match=r"model\.decoder\.compute_dtype"):
        replace(TEXT, decoder=TEXT.decoder.with_fields(compute_dtype="bfloat16"))
    tokens = jnp.zeros((1, 3), jnp.int32)
    alone: DecoderConfig = tiny(cross_attention=DotProductCrossAttention())
    with pytest.raises(ArgumentError, match="encoder_outputs = None"):
        model_of(alone)(tokens)
    with pytest.raises(ArgumentError, match="encoder_outputs"):
        model_of(tiny()).hidden(tokens, encoder_outputs=jnp.zeros((1, 2, 20)))


def test_flops_are_those_of_the_kernels():
    """Multiply-adds with kernels, counted by the tokens that meet each."""
    lengths = {"inputs": 7, "decoder_inputs": 5}
    flops, counted = TEXT.flops(lengths), 0.0
    for name, inputs in structure_of(TEXT).kernels.items():
        size = np.prod(structure_of(TEXT).shapes[name].shape)
        reads_source = name.startswith(("encoder.", "projection"))
        reads_source |= (
            ".sublayers.1.attention.key" in name or ".sublayers.1.attention.value" in name
        )
        counted += size * (1 if reads_source else 5 / 7) * bool(inputs)
    counted += 31 * 16 * 5 / 7  # the tied logits
    assert flops.products == pytest.approx(2 * counted)
    tokens = CAPTIONS.row_lengths(lengths)["inputs"]
    assert tokens == CAPTIONS.encoder.num_tokens
    longer = CAPTIONS.flops(lengths | {"decoder_inputs": 10})
    assert longer.attention > CAPTIONS.flops(lengths).attention


@BOTH
def test_low_rank_factors_are_found_in_both_stacks(config):
    plain = structure_of(config)
    found = AbstractLoraModel(plain, LoRA(rank=2))
    stacks = {name.split(".")[0] for name in found.shapes if "lora" in name}
    assert stacks >= {"encoder", "decoder"}
