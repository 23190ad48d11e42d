"""Files config.json as version 4 and older ones wrote them, with much that nothing reads now."""

from math import prod

import pytest
from published_files import FILES

from jaxformer.functional import (
    ALiBi,
    DistanceEmbedding,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    NoPosition,
    RoPE,
    Sinusoidal,
)
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values
from jaxformer.hub.fields import resolved
from jaxformer.hub.hf_config import HFConfig
from jaxformer.io.components import value_at
from jaxformer.models import AbstractModel
from jaxformer.models.protein import TokenDropout
from jaxformer.nn import ConvolutionBlock, DisentangledAttention, PostNorm
from jaxformer.zoo import FORMATS

# Some fields of ours: those on which the odd ones of a file might have an effect.
EXPECTED = {
    "bart-large": {
        "mlp_dim": 4096,
        "position": Learned(max_length=1024, offset=2),
        "embeddings.scale": 1.0,
    },
    "bart-large-cnn": {"vocab_size": 50264, "decoder_layers": 12},
    "mbart-large-50": {
        "feed_forward.activation": "relu",
        "embeddings.scale": 32.0,
        "vocab_size": 250054,
    },
    "opus-mt-en-de": {
        "feed_forward.activation": "silu",
        "position": Sinusoidal(layout="half"),
        "embeddings.norm": None,
    },
    "pegasus-xsum": {
        "position": Learned(max_length=512, learns=False),
        "embeddings.norm": None,
    },
    "m2m100-418m": {
        "position": Sinusoidal(layout="half", endpoint=True, offset=2),
        "logits.bias": False,
    },
    "blenderbot-400m-distill": {
        "num_layers": 2,
        "decoder_layers": 12,
        "position": Learned(max_length=128),
    },
    "blenderbot-small-90m": {
        "decoder_position": Learned(max_length=512, after_norm=True),
        "embeddings.padding_id": 0,
    },
    "t5-small": {"tie_embeddings": True, "logits.scale": 512**-0.5, "feed_forward.gated": False},
    "t5-v1.1-small": {
        "tie_embeddings": False,
        "logits.scale": 1.0,
        "feed_forward.activation": "gelu_tanh",
    },
    "mt5-small": {"tie_embeddings": False, "vocab_size": 250112, "head_dim": 64},
    "gpt2": {"num_layers": 12, "position": Learned(max_length=1024), "mlp_dim": 3072},
    "gpt-neo-125m": {"windows": (None, 256), "mlp_dim": 3072, "self_attention.scale": 1.0},
    "gpt-j-6b": {
        "position": RoPE(fraction=0.25, layout="interleaved"),
        "logits.bias": True,
        "mlp_dim": 16384,
        "tie_embeddings": False,
    },
    "opt-125m": {"position": Learned(max_length=2048, offset=2), "embeddings.dim": None},
    "opt-350m": {
        "embeddings.dim": 512,
        "embeddings.padding_id": 1,
        "output_width": 512,
        "residual": PostNorm(),
        "position.offset": 2,
    },
    "bloom-560m": {"model_dim": 1024, "num_layers": 24, "num_heads": 16, "position": ALiBi()},
    "mpt-7b-storywriter": {
        "position": ALiBi(max_exponent=16.0),
        "self_attention.clip": 6,
        "norm": LayerNorm(bias=False),
    },
    "nomic-embed-text-v1.5": {
        "position": RoPE(theta=1000.0),
        "mlp_dim": 3072,
        "feed_forward.gated": True,
        "self_attention.bias": False,
    },
    "eurobert-210m": {"position": RoPE(theta=250_000.0), "logits.bias": False},
    "esm2-t6-8m": {
        "position": RoPE(theta=10_000.0),
        "embeddings.norm": None,
        "token_dropout": TokenDropout(mask_id=32),
    },
    "deberta-base": {
        "position": NoPosition(),
        "relative_position": DistanceEmbedding(512),
        "self_attention": DisentangledAttention(key_bias=False),
    },
    "deberta-v2-xlarge": {
        "first_block": ConvolutionBlock(3, "gelu"),
        "windows": (None,) * 24,
        "pooler": None,
    },
    "deberta-v3-base": {
        "relative_position": DistanceEmbedding(512, 256, norm=LayerNorm(1e-7)),
        "self_attention": DisentangledAttention(share_projections=True),
        "first_block": None,
    },
    "xglm-564m": {"embeddings.scale": 32.0, "num_heads": 16, "mlp_dim": 4096},
    "Llama 3.2": {"position.scaling": Llama3Scaling(32.0, 1.0, 4.0, 8192)},
    "Gemma": {"feed_forward.activation": "gelu_tanh"},
    "Gemma 2": {"self_attention.scale": 144**-0.5, "windows": (4096, None)},
    "Gemma 3": {
        "window_position": RoPE(theta=10_000.0),
        "position": RoPE(theta=1e6, scaling=LinearScaling(8.0)),
        "windows": ((512,) * 5 + (None,)) * 4 + (512,) * 2,
    },
    "embeddinggemma": {"windows": (257, 257, 257, 257, 257, None), "causal": False},
    "Qwen 2.5": {"windows": (None,)},
    "Phi-3.5": {"position.scaling.factor": 32.0},
    "Phi-4-mini": {"position.fraction": 0.75},
    "OLMo 3": {"windows": (4096, 4096, 4096, None)},
    "OLMo 3 with another base": {"window_position": RoPE(theta=500_000.0)},
    "SmolLM 3": {"rope_layers": (True, True, True, False)},
    "Granite 3": {
        "embeddings.scale": 12.0,
        "residual.output_scale": 0.22,
        "logits.scale": 1 / 16,
    },
    "Command R7B": {
        "position": NoPosition(),
        "window_position": RoPE(theta=5e4, layout="interleaved"),
    },
}
# The parameters of encoders whose files have other sizes than the class, in millions; classes leave
# out up to 0.7 of those of the whole model (MaskedLM has no pooler).
MILLIONS = {
    "bert-base-uncased": 109.5,
    "bert-base-cased": 108.3,
    "bert-base-chinese": 102.3,
    "bert-base-multilingual-cased": 178.0,
    "a classifier of version 2": 109.5,
    "all-MiniLM-L6-v2": 22.7,
    "roberta-base": 124.7,
    "xlm-roberta-base": 278.3,
    "electra-small-discriminator": 13.5,
    "electra-small-generator": 13.5,
    "albert-base-v2": 11.2,
    "distilbert-base-uncased": 67.0,
    "distilbert-base-uncased-finetuned-sst-2-english": 67.0,
    "mpnet-base": 109.5,
    "roformer_chinese_base": 124.1,
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_understood_and_written_as_it_was(name):
    checkpoint = read_checkpoint(HFConfig(FILES[name]), FORMATS)
    expected = EXPECTED.get(name, {})
    assert {field: value_at(checkpoint.config, field) for field in expected} == expected
    assert config_values(checkpoint) == FILES[name]


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items(), ids=MILLIONS)
def test_the_class_has_the_parameters_that_are_known(name, millions):
    checkpoint = read_checkpoint(HFConfig(FILES[name]), FORMATS)
    assert [checkpoint.architecture.name] == FILES[name]["architectures"]
    shapes = AbstractModel(checkpoint.config.build).shapes.values()
    assert abs(sum(prod(x.shape) for x in shapes) / 1e6 - millions) < 0.7


# Of these transformers 5 refuses a field, ties the tables, or keeps the old spelling.
READ_OTHERWISE = {"t5-v1.1-small", "mt5-small", "mpt-7b-storywriter", "esm2-t6-8m"}


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in FILES if name not in READ_OTHERWISE])
def test_it_means_what_transformers_makes_of_it(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    values = FILES[name]
    copy = {name: dict(x) if isinstance(x, dict) else x for name, x in values.items()}
    transformers.AutoConfig.for_model(**copy).save_pretrained(tmp_path)
    current = HFConfig.of_folder(tmp_path)
    assert "rope_theta" not in current.values  # or it would not be the new spelling
    architectures = {"architectures": values.get("architectures")}
    config = read_checkpoint(HFConfig(values), FORMATS).config
    found = read_checkpoint(HFConfig(current.values | architectures), FORMATS).config
    assert resolved(config) == resolved(found)
    # And what we write is understood there as it is here.
    written = {**values, **FORMATS[values["model_type"]].config_map.write(config)}
    transformers.AutoConfig.for_model(**written).save_pretrained(tmp_path / "again")
    again = HFConfig.of_folder(tmp_path / "again").values | architectures
    assert resolved(config) == resolved(read_checkpoint(HFConfig(again), FORMATS).config)
