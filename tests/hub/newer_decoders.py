"""Decoders that came after Llama 3: what their published config.json say, and variants of it."""

from jaxformer.hub.fields import FULL, SLIDING


def _published(kind, name, width, layers, heads, kv_heads, inner, vocabulary, **more):
    """The values that every file has, and more."""
    return {
        "model_type": kind,
        "architectures": [f"{name}ForCausalLM"],
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "intermediate_size": inner,
        "vocab_size": vocabulary,
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **more,
    }


_COHERE = {"bos_token_id": 5, "eos_token_id": 255001, "pad_token_id": 0, "layer_norm_eps": 1e-5}
PUBLISHED = {
    "OLMo 3": _published(
        "olmo3", "Olmo3", 4096, 32, 32, 32, 11008, 100278,
        hidden_act="silu",
        attention_bias=False,
        layer_types=[*[SLIDING] * 3, FULL] * 8,
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        rope_scaling={
            "attention_factor": 1.2079441541679836,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 8.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "yarn",
        },
        rope_theta=500000,
        sliding_window=4096,
        tie_word_embeddings=False,
        eos_token_id=100257,
        pad_token_id=100277,
    ),
    # Of layers with a window such a file says nothing.
    "OLMo 3 with another base": _published(
        "olmo3", "Olmo3", 64, 4, 4, 4, 96, 100, pad_token_id=1, rope_theta=10000.0
    ),
    "SmolLM 3": _published(
        "smollm3", "SmolLM3", 2048, 36, 16, 4, 11008, 128256,
        hidden_act="silu",
        attention_bias=False,
        mlp_bias=False,
        layer_types=[FULL] * 36,
        max_position_embeddings=65536,
        max_window_layers=28,
        no_rope_layer_interval=4,
        no_rope_layers=[1, 1, 1, 0] * 9,
        pretraining_tp=2,
        rms_norm_eps=1e-6,
        rope_scaling=None,
        rope_theta=5000000.0,
        sliding_window=None,
        use_sliding_window=False,
        pad_token_id=128004,
    ),
    "Granite 3": _published(
        "granite", "Granite", 4096, 40, 32, 8, 12800, 49155,
        attention_bias=False,
        attention_multiplier=0.0078125,
        embedding_multiplier=12.0,
        hidden_act="silu",
        logits_scaling=16.0,
        max_position_embeddings=4096,
        mlp_bias=False,
        residual_multiplier=0.22,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=10000,
        tie_word_embeddings=True,
        pad_token_id=0,
    ),
    "Command R": _published(
        "cohere", "Cohere", 8192, 40, 64, 64, 22528, 256000,
        **_COHERE,
        attention_bias=False,
        hidden_act="silu",
        logit_scale=0.0625,
        max_position_embeddings=8192,
        rope_theta=8000000.0,
        use_qk_norm=False,
    ),
    "Command R7B": _published(
        "cohere2", "Cohere2", 4096, 32, 32, 8, 14336, 256000,
        **_COHERE,
        attention_bias=False,
        cache_implementation="hybrid",
        head_dim=128,
        hidden_act="silu",
        logit_scale=0.25,
        max_position_embeddings=8192,
        rope_theta=50000,
        sliding_window=4096,
        sliding_window_pattern=4,
    ),
    "StarCoder 2": _published(
        "starcoder2", "Starcoder2", 3072, 30, 24, 2, 12288, 49152,
        activation_function="gelu",
        attention_softmax_in_fp32=True,
        embedding_dropout=0.1,
        hidden_act="gelu_pytorch_tanh",
        layer_norm_epsilon=1e-5,
        max_position_embeddings=16384,
        mlp_type="default",
        norm_epsilon=1e-5,
        norm_type="layer_norm",
        residual_dropout=0.1,
        rope_theta=999999.4420358813,
        sliding_window=4096,
        use_bias=True,
    ),
    "GLM-4": _published(
        "glm", "Glm", 4096, 40, 32, 2, 13696, 151552,
        attention_bias=True,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        pad_token_id=151329,
        partial_rotary_factor=0.5,
        rms_norm_eps=1.5625e-07,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    "GLM-4-0414": _published(
        "glm4", "Glm4", 6144, 61, 48, 2, 23040, 151552,
        attention_bias=False,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=32768,
        pad_token_id=151329,
        partial_rotary_factor=0.5,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    ),
    "ERNIE 4.5": _published(
        "ernie4_5", "Ernie4_5", 1024, 18, 16, 2, 3072, 103424,
        head_dim=128,
        hidden_act="silu",
        max_position_embeddings=131072,
        pad_token_id=0,
        rms_norm_eps=1e-5,
        rope_scaling=None,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_bias=False,
    ),
}  # fmt: skip

_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
_LINEAR = {"rope_type": "linear", "rope_theta": 100.0, "factor": 2.5}
_PLAIN = {"rope_type": "default", "rope_theta": 100.0}
VARIANTS = {
    "olmo3: no windows, tied, biases": (
        "olmo3",
        {
            "layer_types": [FULL] * 4,
            "rope_parameters": {SLIDING: _PLAIN, FULL: _LINEAR},
            "tie_word_embeddings": True,
            "attention_bias": True,
        },
    ),
    "smollm3: every second layer without positions, untied": (
        "smollm3",
        {
            "no_rope_layers": None,
            "no_rope_layer_interval": 2,
            "layer_types": None,
            "use_sliding_window": False,
            "attention_bias": False,
            "mlp_bias": True,
            "rope_parameters": _YARN | {"rope_theta": 100.0},
            "tie_word_embeddings": False,
        },
    ),
    "smollm3: all layers rotate": (
        "smollm3",
        {"no_rope_layers": [1] * 4, "layer_types": [FULL] * 4, "use_sliding_window": False},
    ),
    "granite: tied, no biases": (
        "granite",
        {
            "tie_word_embeddings": True,
            "attention_bias": False,
            "mlp_bias": False,
            "logits_scaling": 49.0,
            "rope_parameters": _LINEAR,
        },
    ),
    "cohere: untied, no norms of queries and keys, no biases": (
        "cohere",
        {
            "use_qk_norm": False,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "rope_parameters": _YARN | {"rope_theta": 100.0},
        },
    ),
    "cohere2: windows everywhere, untied": (
        "cohere2",
        {
            "layer_types": [SLIDING] * 4,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "rope_parameters": _LINEAR,
        },
    ),
    "cohere2: no positions at all": ("cohere2", {"layer_types": [FULL] * 4}),
    "starcoder2: untied, no biases, no window": (
        "starcoder2",
        {
            "use_bias": False,
            "sliding_window": None,
            "tie_word_embeddings": False,
            "hidden_act": "gelu_pytorch_tanh",
            "rope_parameters": _YARN | {"rope_theta": 100.0},
        },
    ),
    "glm: tied, another share rotates": (
        "glm",
        {
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": _LINEAR | {"partial_rotary_factor": 0.85},
        },
    ),
    "glm4: tied, no biases": (
        "glm4",
        {
            "attention_bias": False,
            "tie_word_embeddings": True,
            "rope_parameters": _YARN | {"rope_theta": 100.0, "partial_rotary_factor": 1.0},
        },
    ),
    "ernie4_5: untied, no biases": (
        "ernie4_5",
        {
            "use_bias": False,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 3.0},
        },
    ),
}
