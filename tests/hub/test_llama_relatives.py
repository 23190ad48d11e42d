"""Llama and its relatives: files as they were published, and variants of what is in them."""

from dataclasses import replace

import newer_decoders
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from saved_folders import save_tiny
from variants import check_outputs, models

from jaxformer.errors import ConfigError
from jaxformer.functional import LinearScaling, Llama3Scaling, LongRoPE, NoPosition, RoPE
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
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS, SYSTEMS

LLAMA2 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "torch_dtype": "float16",
    "vocab_size": 32000,
    "pretraining_tp": 1,
}
LLAMA32 = {
    **LLAMA2,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "attention_bias": False,
    "mlp_bias": False,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "eos_token_id": [128001, 128008, 128009],
}
PHI35 = {
    "model_type": "phi3",
    "architectures": ["Phi3ForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"},
    "attention_bias": False,
    "embd_pdrop": 0.0,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "original_max_position_embeddings": 4096,
    "pad_token_id": 32000,
    "resid_pdrop": 0.0,
    "rms_norm_eps": 1e-5,
    "rope_scaling": {
        "long_factor": [1.0 + 0.5 * i for i in range(48)],
        "short_factor": [1.0 + 0.1 * i for i in range(48)],
        "type": "longrope",
    },
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "vocab_size": 32064,
}
GEMMA3 = {
    "model_type": "gemma3_text",
    "architectures": ["Gemma3ForCausalLM"],
    "attn_logit_softcapping": None,
    "cache_implementation": "hybrid",
    "eos_token_id": [1, 106],
    "final_logit_softcapping": None,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rope_local_base_freq": 10000,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "rope_theta": 1000000,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "vocab_size": 262144,
}
PUBLISHED = {
    "Llama 2": LLAMA2,
    "Llama 3.2": LLAMA32,
    "Mistral": {
        **{name: LLAMA2[name] for name in LLAMA2 if name != "pretraining_tp"},
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "head_dim": 128,
        "num_key_value_heads": 8,
    },
    "Gemma": {
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 2048,
        "intermediate_size": 16384,
        "num_attention_heads": 8,
        "num_hidden_layers": 18,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "rope_theta": 10000.0,
        "rope_scaling": None,
    },
    "Gemma 2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "cache_implementation": "hybrid",
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 4608,
        "intermediate_size": 36864,
        "num_attention_heads": 32,
        "num_hidden_layers": 46,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "query_pre_attn_scalar": 144,
        "sliding_window": 4096,
        "sliding_window_size": 4096,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "rope_theta": 10000.0,
    },
    "Gemma 3": GEMMA3,
    "Qwen 2.5": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "max_window_layers": 28,
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    },
    "Qwen 3": {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "head_dim": 128,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "max_window_layers": 36,
        "num_attention_heads": 32,
        "num_hidden_layers": 36,
        "num_key_value_heads": 8,
        "rope_scaling": {
            "factor": 4.0,
            "original_max_position_embeddings": 32768,
            "rope_type": "yarn",
        },
        "rope_theta": 1000000,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Phi-3.5": PHI35,
    "Phi-4-mini": {
        **PHI35,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "partial_rotary_factor": 0.75,
        "tie_word_embeddings": True,
        "vocab_size": 200064,
    },
    "OLMo 2": {
        "model_type": "olmo2",
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "rope_theta": 500000,
        "rms_norm_eps": 1e-6,
        "vocab_size": 100352,
    },
    **newer_decoders.PUBLISHED,
}


def config_of(values, path="config.json"):
    return read_checkpoint(HFConfig(values, path), FORMATS).config


@pytest.mark.torch
@pytest.mark.parametrize("values", PUBLISHED.values(), ids=PUBLISHED.keys())
def test_published_files_mean_what_transformers_makes_of_them(values, tmp_path):
    transformers = pytest.importorskip("transformers")
    copy = {name: dict(x) if isinstance(x, dict) else x for name, x in values.items()}
    transformers.AutoConfig.for_model(**copy).save_pretrained(tmp_path)
    current = HFConfig.of_folder(tmp_path)
    assert "rope_theta" not in current.values  # or it would not be the new spelling
    current.values.setdefault("architectures", values["architectures"])
    config = config_of(values)
    assert resolved(config) == resolved(config_of(current.values))
    # And what we write is understood there as it is here.
    written = {**values, **FORMATS[values["model_type"]].config_map.write(config)}
    again = transformers.AutoConfig.for_model(**written)
    again.save_pretrained(tmp_path / "again")
    found = HFConfig.of_folder(tmp_path / "again").values
    found |= {"architectures": values["architectures"]}
    assert resolved(config) == resolved(config_of(found))


def test_what_published_files_say():
    found = {name: config_of(values) for name, values in PUBLISHED.items()}
    assert found["Llama 3.2"].position.scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    assert found["Gemma"].feed_forward.activation == "gelu_tanh"
    assert found["Gemma 2"].self_attention.scale == 144**-0.5
    assert found["Gemma 2"].windows == (4096, None)
    third = found["Gemma 3"]
    assert third.window_position == RoPE(theta=10_000.0)
    assert third.position == RoPE(theta=1e6, scaling=LinearScaling(8.0))
    assert third.windows[:12] == ((512,) * 5 + (None,)) * 2
    assert found["Qwen 2.5"].windows == (None,)
    assert found["Phi-4-mini"].position.fraction == 0.75
    assert found["Phi-3.5"].position.scaling.factor == 32.0
    assert found["OLMo 3"].windows == (4096, 4096, 4096, None)
    assert found["OLMo 3 with another base"].window_position == RoPE(theta=500_000.0)
    assert found["SmolLM 3"].rope_layers == (True, True, True, False)
    granite = found["Granite 3"]
    factors = granite.embeddings.scale, granite.residual.output_scale, granite.logits.scale
    assert factors == (12.0, 0.22, 1 / 16)
    assert found["Command R7B"].position == NoPosition()
    assert found["Command R7B"].window_position == RoPE(theta=5e4, layout="interleaved")


def test_a_factor_of_the_logits_is_not_lost():
    config = SYSTEMS["llama2-7b"].config.with_fields(**{"logits.scale": 1 / 8})
    checkpoint = describe(config, FORMATS.values())
    assert checkpoint.hf_config.values["model_type"] == "granite"
    assert checkpoint.hf_config.values["logits_scaling"] == 8


def test_what_cannot_be_said_is_named():
    config = SYSTEMS["llama2-7b"].config.with_fields(**{"self_attention.clip": 3.0})
    with pytest.raises(ConfigError, match=r"self_attention.clip = 3\.0 \(it has None\)"):
        describe(config, FORMATS.values())


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 8,
    "short_factor": [1.0, 1.1, 1.3, 1.2, 1.7, 1.5],
    "long_factor": [1.2, 2.0, 3.5, 3.0, 4.5, 6.0],
}
PLAIN = {"rope_type": "default", "rope_theta": 100.0}
VARIANTS = {
    "llama: every field of yarn": (
        "llama",
        {
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
    ),
    "llama: longrope, tied, as many keys as queries": (
        "llama",
        {
            "rope_parameters": LONGROPE,
            "num_key_value_heads": None,
            "tie_word_embeddings": True,
            "mlp_bias": False,
        },
    ),
    "mistral: no window, dynamic": (
        "mistral",
        {"sliding_window": None, "rope_parameters": {"rope_type": "dynamic", "factor": 3.0}},
    ),
    "gemma2: neither windows nor caps": (
        "gemma2",
        {
            "layer_types": [FULL] * 4,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "query_pre_attn_scalar": 12,
        },
    ),
    "gemma3: an odd number of layers, yarn": (
        "gemma3_text",
        {
            "num_hidden_layers": 3,
            "layer_types": [SLIDING, SLIDING, FULL],
            "rope_parameters": {SLIDING: PLAIN | {"rope_theta": 9.0}, FULL: PLAIN | YARN},
        },
    ),
    "qwen2: no windows": ("qwen2", {"use_sliding_window": False}),
    "phi3: plain": (
        "phi3",
        {"sliding_window": None, "rope_parameters": PLAIN, "partial_rotary_factor": 1.0},
    ),
    **newer_decoders.VARIANTS,
}


@pytest.mark.torch
@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS.keys())
@pytest.mark.quick("gemma2*", "smollm3*untied", "llama*longrope*")
def test_variants(model_type, changes, tmp_path):
    ours, theirs = models(save_tiny(model_type, tmp_path, **changes))
    # Beyond every window, the original context (8) and the longest (20).
    inputs = example_inputs(ours.checkpoint, "right", length=25)
    check_outputs(ours, theirs, inputs, hidden_states=False)
    written = ours.checkpoint.model_format.config_map.write(ours.config)
    again = config_of({**ours.checkpoint.hf_config.values, **written})
    assert resolved(ours.config) == resolved(replace(again, compute_dtype="float32"))


@pytest.mark.torch
def test_superfluous_tensors_of_old_files(tmp_path):
    save_tiny("llama", tmp_path, num_hidden_layers=1, tie_word_embeddings=True)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    assert "lm_head.weight" not in tensors
    buffers = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(6, np.float32)}
    copy = {"lm_head.weight": tensors["model.embed_tokens.weight"]}
    save_file(tensors | buffers | copy, path, {"format": "pt"})
    loaded = load(tmp_path)
    assert "heads.language_model.kernel" not in loaded.parameters
    other = {"lm_head.weight": copy["lm_head.weight"] + 1}
    save_file(tensors | other, path, {"format": "pt"})
    untied = load(tmp_path).parameters["heads.language_model.kernel"]
    np.testing.assert_array_equal(untied.T, other["lm_head.weight"])  # as transformers reads it


def test_a_negative_padding_id_counts_from_the_end():
    assert config_of({**LLAMA2, "pad_token_id": -1}).embeddings.padding_id == 31999
    assert config_of({**LLAMA2, "pad_token_id": None}).embeddings.padding_id is None


def test_the_cap_that_transformers_ignores_in_gemma_3():
    with pytest.warns(UserWarning, match=r"attn_logit_softcapping = 50\.0 is ignored"):
        config = config_of({**GEMMA3, "attn_logit_softcapping": 50.0})
    assert config.self_attention.softcap is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**LLAMA2, "hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
        ({**GEMMA3, "layer_types": [SLIDING]}, r"layer_types = .*: must be 26 times"),
        ({**GEMMA3, "layer_types": ["chunked"] * 26}, "must be 26 times"),
        ({**GEMMA3, "sliding_window": None}, "there is no sliding_window"),
        ({**PUBLISHED["Gemma 2"], "hidden_act": "relu"}, "hidden_act = 'relu' is not supported"),
        ({**PHI35, "rope_scaling": {"type": "linear", "factor": 2.0}}, "only longrope"),
        ({**PHI35, "full_attn_mod": 2}, "full_attn_mod = 2 is not supported"),
        ({**PUBLISHED["Qwen 2.5"], "layer_types": [SLIDING] * 28}, "there is no sliding_window"),
        ({**PUBLISHED["SmolLM 3"], "no_rope_layers": [1, 0]}, "no_rope_layers = .*: must be"),
        ({**PUBLISHED["SmolLM 3"], "no_rope_layers": [2] * 36}, "no_rope_layers = .*: must be"),
    ],
)
def test_what_nobody_implements_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        config_of(values)


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
