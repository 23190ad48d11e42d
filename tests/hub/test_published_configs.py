"""Files config.json as version 4 and older ones wrote them, with much that nothing reads now."""

from math import prod

import pytest
from published_files import FILES

from jaxformer.functional import (
    ALiBi,
    LayerNorm,
    Learned,
    LinearScaling,
    RoPE,
    Sinusoidal,
)
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import config_values
from jaxformer.hub.fields import resolved
from jaxformer.hub.hf_config import HFConfig
from jaxformer.io.components import value_at
from jaxformer.io.serialization import diff
from jaxformer.models import AbstractModel
from jaxformer.nn import PostNorm
from jaxformer.zoo import FORMATS, SYSTEMS

# Files of systems of the zoo, from which they differ in what training may change.
SYSTEM_OF = {name: name for name in FILES if name in SYSTEMS} | {
    "gpt2": "gpt2-small",
    "esm2-t6-8m": "esm2-8m",
    "bert-base-uncased": "bert-base",
    "a classifier of version 2": "bert-base",
    "albert-base-v2": "albert-base",
    "distilbert-base-uncased": "distilbert-base",
    "distilbert-base-uncased-finetuned-sst-2-english": "distilbert-base",
    "roformer_chinese_base": "roformer-base-zh",
    "Llama 2": "llama2-7b",
    "Llama 3.2": "llama3.2-1b",
    "Gemma": "gemma-2b",
    "SmolLM 3": "smollm3-3b",
    "Granite 3": "granite-3.0-8b",
    "Command R": "command-r-35b",
    "Command R7B": "command-r7b",
    "StarCoder 2": "starcoder2-3b",
    "GLM-4-0414": "glm-4-32b-0414",
    "ERNIE 4.5": "ernie-4.5-0.3b",
    "clip_vit_base": "clip-vit-base-patch32",
}
TRAINED = {"dropout", "embeddings.dropout", "self_attention.dropout", "embeddings.padding_id"}
TRAINED |= {"heads", "pooler"}
# Of other files some fields of ours: those on which the odd ones of a file might have an effect.
EXPECTED = {
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
    "gpt-neo-125m": {"windows": (None, 256), "mlp_dim": 3072, "self_attention.scale": 1.0},
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
}
# The parameters of encoders whose files have other sizes than the class, in millions; classes leave
# out up to 0.7 of those of the whole model (MaskedLM has no pooler).
MILLIONS = {
    "bert-base-cased": 108.3,
    "bert-base-chinese": 102.3,
    "bert-base-multilingual-cased": 178.0,
    "all-MiniLM-L6-v2": 22.7,
    "xlm-roberta-base": 278.3,
    "electra-small-discriminator": 13.5,
    "electra-small-generator": 13.5,
    "mpnet-base": 109.5,
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_understood_and_written_as_it_was(name):
    checkpoint = read_checkpoint(HFConfig(FILES[name]), FORMATS)
    expected = EXPECTED.get(name, {})
    assert {field: value_at(checkpoint.config, field) for field in expected} == expected
    assert config_values(checkpoint) == FILES[name]


@pytest.mark.parametrize(("name", "system"), SYSTEM_OF.items(), ids=SYSTEM_OF)
def test_the_file_of_a_system_is_the_system(name, system):
    config = read_checkpoint(HFConfig(FILES[name]), FORMATS).config
    assert diff(resolved(SYSTEMS[system].config), resolved(config)).keys() <= TRAINED


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
