"""Encoders as causal models: BERT and its relatives with `is_decoder`."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

import jaxformer
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import DecoderConfig, LanguageModel
from jaxformer.pretrained.writing import save
from jaxformer.training.transfer.fields import model_for
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.more

KINDS = {"bert": "LMHeadModel", "roberta": "CausalLM", "electra": "CausalLM", "ernie": "CausalLM"}


def read(**values):
    return read_checkpoint(HFConfig({"model_type": "bert"} | values), FORMATS)


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("roberta")
def test_a_model_of_ours_has_the_class(kind, tmp_path):
    ours = jaxformer.load(save_tiny(kind, tmp_path, KINDS[kind]))
    again = describe(
        ours.config, [FORMATS[kind]], {"pad_token_id": ours.config.embeddings.padding_id}
    )
    assert again.architecture == ours.checkpoint.architecture
    assert again.hf_config.values["is_decoder"] is True


@pytest.mark.torch
def test_the_class_may_have_the_name_it_has_in_flax(tmp_path):
    folder = save_tiny("bert", tmp_path / "theirs", "LMHeadModel")
    path = folder / "config.json"
    path.write_text(path.read_text().replace("BertLMHeadModel", "BertForCausalLM"))
    ours = jaxformer.load(folder)
    assert ours.checkpoint.architecture.name == "BertLMHeadModel"
    save(ours, tmp_path / "ours")
    assert (tmp_path / "ours" / "config.json").read_bytes() == path.read_bytes()


@pytest.mark.torch
@pytest.mark.slow
def test_the_types_of_tokens_are_those_that_are_given(tmp_path):
    ours = jaxformer.load(save_tiny("bert", tmp_path, "LMHeadModel"))
    ids = {"input_ids": np.arange(6, 15)[None]}
    zeros = {"token_type_ids": np.zeros((1, 9), int)}
    ones = {"token_type_ids": np.ones((1, 9), int)}
    plain, first, second = (
        jaxformer.forward(ours, ids | types)["logits"] for types in ({}, zeros, ones)
    )
    np.testing.assert_array_equal(plain, first)
    assert np.abs(plain - second).max() > 0.1
    continued = jaxformer.generate(ours, ids | zeros, max_new_tokens=2)["sequences"]
    assert continued.shape == (1, 11)
    with pytest.raises(DataError, match="token_type_ids must be 0 everywhere"):
        jaxformer.generate(ours, ids | ones, max_new_tokens=2)
    gpt2 = jaxformer.load(save_tiny("gpt2", tmp_path / "gpt2", "LMHeadModel"))
    with pytest.raises(DataError, match="token_type_ids"):
        jaxformer.forward(gpt2, ids | zeros)


def test_other_heads_of_a_decoder_are_those_of_a_decoder():
    checkpoint = read(architectures=["BertLMHeadModel"], is_decoder=True)
    assert isinstance(checkpoint.config, DecoderConfig)
    assert isinstance(checkpoint.config.heads[0], LanguageModel)
    assert model_for(checkpoint, "language_model", None) == checkpoint.config
    (classifier,) = model_for(checkpoint, "classification", 3).heads
    assert (classifier.num_labels, classifier.pooling) == (3, "last")


def test_an_encoder_does_not_become_a_decoder_by_its_data():
    model = model_for(read(), "language_model", None)
    assert not model.causal
    assert model.heads == (LanguageModel(),)


def test_the_layer_before_the_logits_maps_to_narrow_embeddings():
    values = {"architectures": ["ElectraForCausalLM"], "is_decoder": True, "vocab_size": 50}
    config = read(model_type="electra", hidden_size=24, embedding_size=12, **values).config
    config = replace(config, num_layers=1, num_heads=2, mlp_dim=20)
    tokens = np.zeros((1, 3), np.int32)
    scores = jax.eval_shape(lambda: config.build(jax.random.key(0))(tokens))
    assert scores.shape == (1, 3, 50)
    products = config.flops({"inputs": 3}).products
    without = replace(config, heads=()).flops({"inputs": 3}).products
    assert products - without == 2 * (24 * 12 + 12 * 50)
    with pytest.raises(ConfigError, match=r"LanguageModel\(dense=Dense"):
        replace(config, heads=(LanguageModel(),)).build(jax.random.key(0))
