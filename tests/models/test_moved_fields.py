"""What were fields of a model's configuration and are settings of its components now."""

import logging
from dataclasses import dataclass, replace

import jax
import pytest
from tiny_models import (
    structure_of,
    tiny,
    tiny_composite,
    tiny_encoder,
    tiny_encoder_decoder,
    tiny_spectrogram,
    tiny_vision,
    tiny_waveform,
)

from jaxformer.config import Config
from jaxformer.config.overrides import parse
from jaxformer.data import Bytes, DataConfig
from jaxformer.errors import ConfigError
from jaxformer.functional import RMSNorm
from jaxformer.io.serialization import from_json, to_json
from jaxformer.models import DecoderConfig, EncoderConfig
from jaxformer.nn import (
    MLP,
    BlockSparseAttention,
    DotProductAttention,
    DotProductCrossAttention,
    Embeddings,
    PreNorm,
    SelfAttention,
    SelfAttentionConfig,
    TokenEmbeddings,
    VocabularyLogits,
)

SIZES = {"num_layers": 1, "model_dim": 8, "num_heads": 2, "mlp_dim": 6, "vocab_size": 9}
OLD = {
    "attention_bias": True,
    "attention_key_bias": False,
    "attention_output_bias": True,
    "attention_scale": 0.5,
    "attention_scale_by_depth": True,
    "attention_clip": 3.0,
    "attention_softcap": 4.0,
    "attention_dropout": 0.25,
    "query_key_norm": RMSNorm(eps=1e-3),
    "query_key_norm_over": "each_head",
    "activation": "relu",
    "gated": False,
    "mlp_bias": True,
    "residual_scale": 0.5,
    "layer_scale": 0.1,
    "first_norm": False,
    "embedding_norm": RMSNorm(eps=1e-4),
    "embedding_scale": 2.0,
    "embedding_dropout": 0.2,
    "embedding_dim": 4,
    "embedding_projection": "both",
    "project_before_norm": True,
    "padding_id": 3,
    "zero_padding": True,
    "token_types": 2,
    "task_types": 3,
    "head_bias": True,
    "head_bias_learns": False,
    "logit_scale": 0.5,
    "logit_softcap": 6.0,
}
ATTENTION = DotProductAttention(
    bias=True,
    key_bias=False,
    output_bias=True,
    scale=0.5,
    scale_by_depth=True,
    clip=3.0,
    softcap=4.0,
    dropout=0.25,
    query_key_norm=RMSNorm(eps=1e-3),
    query_key_norm_over="each_head",
)
EMBEDDINGS = TokenEmbeddings(
    norm=RMSNorm(eps=1e-4),
    scale=2.0,
    dropout=0.2,
    dim=4,
    projection="both",
    project_before_norm=True,
    padding_id=3,
    zero_padding=True,
    token_types=2,
    task_types=3,
)
NEW = DecoderConfig(
    **SIZES,
    embeddings=EMBEDDINGS,
    logits=VocabularyLogits(bias=True, bias_learns=False, scale=0.5, softcap=6.0),
    self_attention=ATTENTION,
    feed_forward=MLP(activation="relu", gated=False, bias=True),
    residual=PreNorm(output_scale=0.5, layer_scale=0.1, first_norm=False),
)
OPTIONS = """--model.attention-bias --model.no-attention-key-bias --model.attention-output-bias
    --model.attention-scale 0.5 --model.attention-scale-by-depth --model.attention-clip 3
    --model.attention-softcap 4 --model.attention-dropout 0.25 --model.query-key-norm RMSNorm
    --model.query-key-norm.eps 1e-3 --model.query-key-norm-over each_head
    --model.activation relu --model.no-gated --model.mlp-bias
    --model.residual-scale 0.5 --model.layer-scale 0.1 --model.no-first-norm
    --model.embedding-norm RMSNorm --model.embedding-norm.eps 1e-4 --model.embedding-scale 2
    --model.embedding-dropout 0.2 --model.embedding-dim 4 --model.embedding-projection both
    --model.project-before-norm --model.padding-id 3 --model.zero-padding --model.token-types 2
    --model.task-types 3 --model.head-bias --model.no-head-bias-learns --model.logit-scale 0.5
    --model.logit-softcap 6"""


@dataclass(frozen=True)
class Mixer(SelfAttentionConfig):
    """Attention of a user's own, without settings."""

    def build(self, key, config, position, window):
        return SelfAttention(key, config, position, window)


def parsed(model, options):
    config = Config(model=model, data=DataConfig(tokenizer=Bytes(), sequence_length=8))
    return parse(config, options.split(), "prog").model


def test_all_of_them_are_known():
    assert set(DecoderConfig.moved_fields) == set(OLD)


def test_python_with_the_old_names(caplog):
    with caplog.at_level(logging.WARNING):
        assert DecoderConfig(**SIZES, **OLD) == NEW
        assert replace(DecoderConfig(**SIZES), **OLD) == NEW
        assert DecoderConfig(**SIZES).with_fields(**OLD) == NEW
        assert NEW.attention_softcap == 4.0
        assert (NEW.activation, NEW.gated) == ("relu", False)
    for name, path in DecoderConfig.moved_fields.items():
        assert f"DecoderConfig.{name} is now {path}" in caplog.text
    with pytest.raises(TypeError, match="attention_bia"):
        DecoderConfig(**SIZES, attention_bia=True)
    with pytest.raises(AttributeError, match="attention_bia"):
        _ = NEW.attention_bia


def test_json_of_older_versions():
    data = to_json(DecoderConfig(**SIZES)) | to_json(OLD)
    assert from_json(data, DecoderConfig) == NEW
    for component in ("self_attention", "feed_forward", "embeddings", "logits"):
        del data[component]
    assert from_json(data, DecoderConfig) == NEW
    with pytest.raises(ConfigError, match=r"config\.attention_clip = '3': must be a number"):
        from_json(data | {"attention_clip": "3"}, DecoderConfig)


@pytest.mark.parametrize("make", [tiny_vision, tiny_waveform, tiny_spectrogram])
def test_models_of_images_and_sounds_with_the_old_names(make):
    usual, norm = make(), RMSNorm(eps=1e-4)
    new = replace(usual, embeddings=Embeddings(norm=norm, scale=2.0, dropout=0.2))
    old = {"embedding_norm": norm, "embedding_scale": 2.0, "embedding_dropout": 0.2}
    unused = {"zero_padding": False, "project_before_norm": False}
    assert replace(usual, **old) == new
    assert from_json(to_json(usual) | to_json(old) | unused, type(usual)) == new
    assert (new.embedding_scale, new.zero_padding) == (2.0, False)


def test_an_encoder_decoder_refuses_types_under_their_old_name():
    named = r"^model\.embeddings\.token_types = 2: must be 0 in EncoderDecoderConfig$"
    with pytest.raises(ConfigError, match=named):
        tiny_encoder_decoder(token_types=2)


def test_json_of_an_attention_without_settings(caplog):
    data = to_json(DecoderConfig(**SIZES)) | {"attention_bias": False, "attention_clip": 2.0}
    data["self_attention"] = to_json(Mixer())
    with caplog.at_level(logging.WARNING):
        found = from_json(data, DecoderConfig, lambda name: Mixer)
    assert found == DecoderConfig(**SIZES, self_attention=Mixer())
    assert "attention_clip = 2.0 is ignored: Mixer has no clip" in caplog.text
    assert "attention_bias" not in caplog.text  # it is what models without it have
    assert (found.attention_bias, found.attention_clip) == (False, None)


def test_options_with_the_old_names(caplog):
    with caplog.at_level(logging.WARNING):
        assert parsed(DecoderConfig(**SIZES), OPTIONS) == NEW
    assert "--model.attention-bias is now --model.self-attention.bias" in caplog.text
    assert "--model.no-gated is now --model.feed-forward.no-gated" in caplog.text
    assert "--model.query-key-norm.eps is now --model.self-attention.query-key-norm.eps" in (
        caplog.text
    )


def test_another_attention_keeps_the_settings_on_the_command_line():
    settings = DotProductAttention(output_bias=True, dropout=0.0)
    found = parsed(
        EncoderConfig(**SIZES, self_attention=settings),
        "--model.attention-dropout 0.2 --model.self-attention BlockSparseAttention",
    )
    expected = BlockSparseAttention(bias=False, output_bias=True, dropout=0.2)
    assert found.self_attention == expected


def test_settings_that_a_class_lacks_are_refused():
    with pytest.raises(ConfigError, match=r"self_attention\.bias: Mixer has no such field"):
        DecoderConfig(**SIZES, self_attention=Mixer(), attention_bias=True)


@pytest.mark.parametrize("make", [tiny, tiny_encoder, tiny_vision])
def test_an_attention_without_settings_has_those_of_its_family(make):
    own = make(self_attention=Mixer())
    assert structure_of(own).shapes == structure_of(make()).shapes


def test_cross_attention_has_the_settings_of_self_attention_or_its_own():
    def cross(config):
        model = jax.eval_shape(config.build, jax.random.key(0))
        return model.decoder_transformer.stack.group[0].sublayers[1].attention

    settings = DotProductAttention(bias=True, softcap=2.0)
    shared = tiny_encoder_decoder(self_attention=settings)
    assert cross(shared).softcap == 2.0
    assert cross(shared).query.bias is not None
    own = replace(
        shared, cross_attention=DotProductCrossAttention(DotProductAttention(softcap=3.0))
    )
    assert cross(own).softcap == 3.0
    assert cross(own).query.bias is None
    composite = tiny_composite(tiny_encoder(pooler=None), **{"self_attention.softcap": 5.0})
    assert cross(composite).softcap == 5.0


def test_all_parts_of_a_model_get_a_setting():
    composite = tiny_composite(tiny_encoder(pooler=None))
    found = composite.with_fields(**{"self_attention.dropout": 0.3, "attention_clip": 2.0})
    for part in found.parts.values():
        assert (part.self_attention.dropout, part.self_attention.clip) == (0.3, 2.0)
    with pytest.raises(ConfigError, match=r"neither model\.encoder nor model\.decoder"):
        composite.with_fields(**{"self_attentin.dropout": 0.3})
    with pytest.raises(ConfigError, match=r"self_attention\.dropot: .* did you mean 'dropout'"):
        composite.with_fields(**{"self_attention.dropot": 0.3})
