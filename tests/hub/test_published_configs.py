"""Files config.json as people publish them, with much that nothing reads now, or ever did."""

from math import prod

import pytest
from published_files import FILES
from saved_folders import change_settings

import jaxformer
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, LayerNorm, Learned, LinearScaling, RoPE, Sinusoidal
from jaxformer.hub.checkpoint import read_checkpoint, warn_about_ignored_fields
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


IGNORED = {
    "bert_trainer_extras": {"max_seq_length", "label_smoothing"},
    "clip_text_config_dict": set(),
    "clip_vit_base": set(),
    "cross_encoder_2025": {"sentence_transformers"},
    "cross_encoder_old": {"sbert_ce_default_activation_function"},
    "embeddinggemma": set(),
    "llama_finetune_version": {"unsloth_fixed", "unsloth_version"},
    "llama_max_sequence_length": {"max_sequence_length"},
    "llama_mirror_fixed": {"unsloth_fixed"},
    "llama_model_max_length": {"model_max_length"},
    "qwen2_dual_chunk": {"dual_chunk_attention_config"},
    "roberta_squad2": {"language", "name"},
    "smollm2": {"is_llama_config"},
    "t5gemma-9b-2b": set(),
}


@pytest.mark.parametrize(("name", "ignored"), IGNORED.items(), ids=IGNORED)
def test_what_is_ignored_is_named_and_changes_nothing(name, ignored, caplog):
    values = FILES[name]
    checkpoint = read_checkpoint(HFConfig(values), FORMATS)
    assert set(checkpoint.hf_config.ignored) == ignored
    warn_about_ignored_fields(checkpoint.hf_config)
    messages = [record.message for record in caplog.records]
    assert len(messages) == bool(ignored)
    assert all(each in message for message in messages for each in ignored)
    assert not any("\n" in message for message in messages)
    bare = {field: value for field, value in values.items() if field not in ignored}
    assert read_checkpoint(HFConfig(bare), FORMATS, strict=True).config == checkpoint.config
    if ignored:
        with pytest.raises(ConfigError, match=min(ignored)):
            read_checkpoint(HFConfig(values), FORMATS, strict=True)


def test_what_other_programs_honour_is_said(caplog):
    hf_config = HFConfig(FILES["qwen2_dual_chunk"], "other.json")
    warn_about_ignored_fields(read_checkpoint(hf_config, FORMATS).hf_config)
    assert "other programs" in caplog.text


def test_yarns_attn_factor_is_ignored_as_in_transformers():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    values = {"model_type": "llama", "max_position_embeddings": 512}
    plain = read_checkpoint(HFConfig(values | {"rope_scaling": yarn}), FORMATS)
    other = HFConfig(values | {"rope_scaling": yarn | {"attn_factor": 0.878}})
    assert read_checkpoint(other, FORMATS).config == plain.config
    assert other.ignored == {"rope_scaling.attn_factor": 0.878}


@pytest.mark.parametrize(("model_type", "head_dim"), [("phi", 64), ("gpt_neox", 96), ("vit", 64)])
def test_a_size_that_the_class_derives_may_be_said(model_type, head_dim):
    read_checkpoint(HFConfig({"model_type": model_type, "head_dim": head_dim}), FORMATS)
    with pytest.raises(ConfigError, match="head_dim = 80"):
        read_checkpoint(HFConfig({"model_type": model_type, "head_dim": 80}), FORMATS)


@pytest.mark.torch
def test_load_warns_once_and_strict_refuses(spoiled, caplog):
    change_settings(spoiled, trained_by="somebody")
    for _ in range(2):
        jaxformer.load(spoiled)
    assert sum("trained_by" in record.message for record in caplog.records) == 1
    with pytest.raises(ConfigError, match="trained_by = 'somebody'"):
        jaxformer.load(spoiled, strict=True)


def test_a_class_of_code_in_the_folder_is_no_misspelling():
    values = FILES["bert_trainer_extras"] | {
        "architectures": ["JinaBertForMaskedLM"],
        "auto_map": {"AutoModelForMaskedLM": "org/code--modeling_bert.JinaBertForMaskedLM"},
    }
    with pytest.raises(ConfigError, match="auto_map") as raised:
        read_checkpoint(HFConfig(values), FORMATS)
    assert "did you mean" not in str(raised.value)
