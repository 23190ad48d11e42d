"""Llama, GPT and their relatives: variants, published files and old ones."""

from dataclasses import replace
from functools import partial

import pytest
from published_files import FILES
from saved_folders import save_tiny
from variants import check_outputs, each_variant, models

from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, LinearScaling, LongRoPE, RoPE
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.fields import (
    FULL,
    SLIDING,
    read_windows,
    resolved,
    shortest_pattern,
    write_windows,
)
from jaxformer.hub.hf_config import HFConfig
from jaxformer.nn import Parallel, PreNorm
from jaxformer.parity.examples import example_inputs
from jaxformer.zoo import FORMATS, SYSTEMS

LLAMA2, GEMMA3, PHI35 = (FILES[name] for name in ("Llama 2", "Gemma 3", "Phi-3.5"))


def config_of(values, path="config.json"):
    return read_checkpoint(HFConfig(values, path), FORMATS).config


def test_a_factor_of_the_logits_is_not_lost():
    config = SYSTEMS["llama2-7b"].config.with_fields(**{"logits.scale": 1 / 8})
    checkpoint = describe(config, FORMATS.values())
    assert checkpoint.hf_config.values["model_type"] == "granite"
    assert checkpoint.hf_config.values["logits_scaling"] == 8


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 8,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.7, 1.5],
    "long_factor": [1.2, 2.0, 3.5, 3.0, 4.5, 6.0],
}
DYNAMIC = {"rope_type": "dynamic", "factor": 3.0}
LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
SCALED, STRETCHED = ({"rope_parameters": rope} for rope in (LINEAR, PLAIN | YARN))
# Neither has biases of attention.
TIED, UNTIED = ({"tie_word_embeddings": tie, "attention_bias": False} for tie in (True, False))
VARIANTS = {
    "llama": {
        "every field of yarn": {
            "attention_bias": False,
            "rope_parameters": YARN
            | {
                "beta_fast": 2.0,
                "beta_slow": 0.25,
                "truncate": False,
                "mscale": 0.7,
                "mscale_all_dim": 1.3,
            },
        },
        "longrope, tied, as many keys as queries": {
            "rope_parameters": LONGROPE,
            "num_key_value_heads": None,
            "tie_word_embeddings": True,
            "mlp_bias": False,
        },
    },
    "mistral": {"no window, dynamic": {"sliding_window": None, "rope_parameters": DYNAMIC}},
    "gemma2": {
        "neither windows nor caps": {
            "layer_types": [FULL] * 4,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 12,
        },
    },
    "gemma3_text": {
        "an odd number of layers, yarn": {
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": {SLIDING: PLAIN | {"rope_theta": 9.0}, FULL: PLAIN | YARN},
        },
    },
    "qwen2": {"no windows": {"use_sliding_window": False}},
    "phi3": {
        "plain": {"sliding_window": None, "rope_parameters": PLAIN, "partial_rotary_factor": 1.0},
    },
    "olmo3": {
        "no windows, tied, biases": {
            "tie_word_embeddings": True,
            "layer_types": [FULL] * 4,
            "rope_parameters": {SLIDING: PLAIN, FULL: LINEAR},
            "attention_bias": True,
        },
    },
    "smollm3": {
        "every second layer without positions, untied": UNTIED
        | STRETCHED
        | {
            "no_rope_layers": None,
            "no_rope_layer_interval": 2,
            "layer_types": None,
            "use_sliding_window": False,
            "mlp_bias": True,
        },
        "all layers rotate": {
            "no_rope_layers": [1] * 4,
            "layer_types": [FULL] * 4,
            "use_sliding_window": False,
        },
    },
    "granite": {"tied, no biases": TIED | SCALED | {"mlp_bias": False, "logits_scaling": 49.0}},
    "cohere": {
        "untied, no norms of queries and keys, no biases": UNTIED
        | STRETCHED
        | {"use_qk_norm": False},
    },
    "cohere2": {
        "windows everywhere, untied": UNTIED | SCALED | {"layer_types": [SLIDING] * 4},
        "no positions at all": {"layer_types": [FULL] * 4},
    },
    "starcoder2": {
        "untied, no biases, no window": STRETCHED
        | {
            "use_bias": False,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "hidden_act": "gelu_pytorch_tanh",
        },
    },
    "glm": {
        "tied, another share rotates": TIED
        | {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.85}},
    },
    "glm4": {
        "tied, no biases": TIED
        | {"rope_parameters": PLAIN | YARN | {"partial_rotary_factor": 1.0}},
    },
    "ernie4_5": {
        "untied, no biases": {
            "use_bias": False,
            "tie_word_embeddings": False,
            "rope_parameters": PLAIN | DYNAMIC,
        },
    },
}


@pytest.mark.torch
@each_variant(VARIANTS)
@pytest.mark.quick("gemma2*", "smollm3*untied", "llama*longrope*")
def test_variants(kind, changes, tmp_path):
    ours, theirs = models(save_tiny(kind, tmp_path, **changes))
    # Beyond every window, the original context (8) and the longest (20).
    inputs = example_inputs(ours.checkpoint, "right", length=25)
    check_outputs(ours, theirs, inputs, hidden_states=False)
    written = ours.checkpoint.model_format.config_map.write(ours.config)
    again = config_of({**ours.checkpoint.hf_config.values, **written})
    assert resolved(ours.config) == resolved(replace(again, compute_dtype="float32"))


def test_a_negative_padding_id_counts_from_the_end():
    assert config_of({**LLAMA2, "pad_token_id": -1}).embeddings.padding_id == 31999
    assert config_of({**LLAMA2, "pad_token_id": None}).embeddings.padding_id is None


def test_the_cap_that_transformers_ignores_in_gemma_3():
    with pytest.warns(UserWarning, match=r"attn_logit_softcapping = 50\.0 is ignored"):
        config = config_of({**GEMMA3, "attn_logit_softcapping": 50.0})
    assert config.self_attention.softcap is None


def test_the_oldest_names_of_longrope():
    for name in ("su", "yarn"):
        scaling = {**PHI35["rope_scaling"], "type": name}
        config = config_of({**PHI35, "rope_scaling": scaling})
        assert isinstance(config.position.scaling, LongRoPE)


@pytest.mark.parametrize(
    ("windows", "pattern"),
    [
        ([None] * 4, (None,)),
        ([3, None] * 3, (3, None)),
        ([3, None, 3], (3, None, 3)),
        ([None, 3, 3, None, 3, 3], (None, 3, 3)),
    ],
)
def test_windows_are_the_shortest_pattern(windows, pattern):
    assert shortest_pattern(windows) == pattern
    kinds = [FULL if window is None else SLIDING for window in windows]
    written = write_windows(pattern, len(windows))
    assert written == {"layer_types": kinds, "sliding_window": 3 if 3 in windows else None}
    assert read_windows(HFConfig(written), kinds, written["sliding_window"]) == pattern


@pytest.mark.torch
def test_an_mpt_with_gentler_slopes(tmp_path):
    """As the code that was published with it computes, where transformers always has 8."""
    folder = save_tiny("mpt", tmp_path, attn_config={"alibi_bias_max": 16, "clip_qkv": 1.5})
    ours, theirs = models(folder)
    assert ours.config.position == ALiBi(max_exponent=16.0)
    body = theirs.model.transformer
    body.build_mpt_alibi_tensor = partial(body.build_mpt_alibi_tensor, alibi_bias_max=16)
    check_outputs(ours, theirs, example_inputs(ours.checkpoint, "left"))
    written = describe(ours.config, [FORMATS["mpt"]])
    assert written.hf_config.values["attn_config"]["alibi_bias_max"] == 16


def test_hub_files_of_pythia_are_understood_in_every_spelling():
    sizes = {"model_type": "gpt_neox", "hidden_size": 512, "intermediate_size": 2048,
             "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 50304}  # fmt: skip
    old = config_of({**sizes, "rotary_emb_base": 10000, "rotary_pct": 0.25})
    both = config_of(
        {**sizes, "rotary_emb_base": 1000, "rope_theta": 1000, "rotary_pct": 0.5,
         "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    )  # fmt: skip
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000, "partial_rotary_factor": 0.5}
    assert old.position == RoPE(theta=10_000.0, fraction=0.25)
    assert both == config_of({**sizes, "rope_parameters": new})
    assert both.position == RoPE(theta=1000.0, fraction=0.5, scaling=LinearScaling(factor=2.0))
    with pytest.raises(ConfigError, match="rope_theta = 500"):
        config_of({**sizes, "rotary_emb_base": 1000, "rope_theta": 500})


@pytest.mark.parametrize(
    ("values", "kv_heads", "residual"),
    [
        ({"multi_query": True, "parallel_attn": True}, 1, Parallel(shared_norm=True)),
        ({"new_decoder_architecture": True, "num_kv_heads": 8}, 8, Parallel(shared_norm=False)),
        ({"multi_query": False, "parallel_attn": False, "alibi": True}, 16, PreNorm()),
    ],
    ids=["7b", "40b", "rw"],
)
def test_the_arrangements_of_falcon_are_told_apart(values, kv_heads, residual):
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 2}
    sizes |= {"model_type": "falcon"}
    config = config_of(sizes | values)
    assert (config.kv_heads, config.residual) == (kv_heads, residual)
    alibi = ALiBi(factor=64**-0.5, rounded=True)
    assert config.position == (alibi if "alibi" in values else RoPE())


@pytest.mark.slow
def test_no_rotary_dim_of_gpt_j_is_lost_to_rounding():
    sizes = {"n_layer": 1, "n_head": 1}
    for head_dim in range(2, 257):
        for rotary_dim in range(2, head_dim + 1, 2):
            values = {"n_embd": head_dim, "rotary_dim": rotary_dim}
            fraction = (
                FORMATS["gptj"]
                .config_map.read(HFConfig(FORMATS["gptj"].defaults | sizes | values))
                .position.rotary_dim(head_dim)
            )
            assert fraction == rotary_dim


def test_the_padding_id_of_xglm_may_be_one_that_is_no_position():
    assert config_of({"model_type": "xglm", "pad_token_id": 0}).embeddings.padding_id == 0
