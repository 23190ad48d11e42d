"""What GPT's relatives can say besides what their small models say; old files."""

from functools import partial

import pytest
from saved_folders import save_tiny
from variants import check_outputs, check_variant, models, with_holes

from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, LinearScaling, RoPE
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.nn import Parallel, PreNorm
from jaxformer.parity.examples import example_inputs
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

VARIANTS = {
    "gpt2 with unscaled logits, another activation and a separate table for the output": (
        "gpt2",
        {
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": True,
            "activation_function": "relu",
            "tie_word_embeddings": False,
            "n_inner": None,
        },
    ),
    "gpt_neox in sequence and without biases": (
        "gpt_neox",
        {"use_parallel_residual": False, "attention_bias": False, "rope_parameters": None},
    ),
    "phi without norms of query and key": (
        "phi",
        {"qk_layernorm": False, "num_key_value_heads": None, "pad_token_id": None},
    ),
    "gpt_neo with another order of windows": (
        "gpt_neo",
        {"num_layers": 3, "attention_types": [[["global"], 1], [["local"], 2]]},
    ),
    "opt 350m": ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 20}),
    "opt of Galactica": (
        "opt",
        {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
        },
    ),
    "mpt without bounds": ("mpt", {"attn_config": {}}),
    "xglm without a scale, with tables apart": (
        "xglm",
        {"scale_embedding": False, "tie_word_embeddings": False, "activation_function": "relu"},
    ),
    "bloom whose stream is normalised": (
        "bloom",
        {"apply_residual_connection_post_layernorm": True},
    ),
    "falcon 7b": ("falcon", {"new_decoder_architecture": False, "bias": False}),
    "falcon 2 11b": ("falcon", {"num_ln_in_parallel_attn": 1, "bias": False}),
    "falcon rw": (
        "falcon",
        {
            "new_decoder_architecture": False,
            "num_kv_heads": None,
            "multi_query": False,
            "parallel_attn": False,
            "alibi": True,
        },
    ),
    "stablelm side by side": (
        "stablelm",
        {"use_parallel_residual": True, "qk_layernorm": False, "use_qkv_bias": False},
    ),
}


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.more
@pytest.mark.quick("mpt without bounds")
def test_a_variant_computes_the_same(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes)


@pytest.mark.parametrize("kind", ["ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.quick("ForQuestionAnswering")
def test_heads_read_the_narrow_states_of_opt(kind, tmp_path):
    ours = check_variant(tmp_path, "opt", VARIANTS["opt 350m"][1], kind)
    assert ours.config.output_width == 20


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [("bloom", {}), ("opt", {}), VARIANTS["falcon rw"]],
    ids=["bloom", "opt", "falcon rw"],
)
@pytest.mark.quick("bloom")
def test_positions_that_are_counted_skip_padding_between_tokens(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes, inputs=with_holes)


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


def config_of(model_type, values):
    """What a config.json is understood as."""
    return read_checkpoint(HFConfig({"model_type": model_type, **values}), FORMATS).config


def test_hub_files_of_pythia_are_understood_in_every_spelling():
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6,
             "num_attention_heads": 8, "vocab_size": 50304}  # fmt: skip
    old = config_of("gpt_neox", {**sizes, "rotary_emb_base": 10000, "rotary_pct": 0.25})
    both = config_of(
        "gpt_neox",
        {**sizes, "rotary_emb_base": 1000, "rope_theta": 1000, "rotary_pct": 0.5,
         "partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
    )  # fmt: skip
    new = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1000, "partial_rotary_factor": 0.5}
    assert old.position == RoPE(theta=10_000.0, fraction=0.25)
    assert both == config_of("gpt_neox", {**sizes, "rope_parameters": new})
    assert both.position == RoPE(theta=1000.0, fraction=0.5, scaling=LinearScaling(factor=2.0))
    with pytest.raises(ConfigError, match="rope_theta = 500"):
        config_of("gpt_neox", {**sizes, "rotary_emb_base": 1000, "rope_theta": 500})


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
    config = config_of("falcon", sizes | values)
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
    assert config_of("xglm", {"pad_token_id": 0}).embeddings.padding_id == 0
