"""Configurations of small models with odd sizes that use every part of a system."""

# long: one entry for each system

from typing import Any

from jaxformer.parity.tiny_images import IMAGES, MLP, SIDES, SIZES, TEXT, VIT
from jaxformer.parity.tiny_sounds import SOUNDS


def _rope(rope_type: str, **fields: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": rope_type, **fields}}


_STRETCHED = {"factor": 4.0, "original_max_position_embeddings": 8}
_LINEAR = _rope("linear", rope_theta=100.0, factor=2.5)
_TOKENS = {"bos_token_id": 3, "eos_token_id": 4, "pad_token_id": 5}
_BERT = TEXT | {"max_position_embeddings": 20}
_ROBERTA = _BERT | {
    "hidden_act": "relu",
    "type_vocab_size": 2,
    "pad_token_id": 3,
    "max_position_embeddings": 24,
}
_DEBERTA = _BERT | {
    "hidden_act": "silu",
    "relative_attention": True,
    "pos_att_type": "c2p|p2c",
    "type_vocab_size": 3,
    "pad_token_id": 3,
    "pooler_hidden_act": "relu",
}
_GPT = {"vocab_size": 131, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 20, **_TOKENS}
_NEOX = TEXT | _TOKENS
_PHI3 = _BERT | {"num_key_value_heads": 2, "pad_token_id": 3}
_LLAMA = _PHI3 | {"head_dim": 12}
_QWEN = _LLAMA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
_DEEPSEEK = _BERT | {
    "num_key_value_heads": 6,
    "pad_token_id": 3,
    "attention_bias": True,
    "q_lora_rank": 20,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 24,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "n_group": 3,
    "topk_group": 2,
    **_rope("yarn", rope_theta=100.0, mscale=1.0, mscale_all_dim=0.7, **_STRETCHED),
}
_GEMMA = _LLAMA | {"attention_bias": True}
_GEMMA2 = _GEMMA | {"num_hidden_layers": 4, "query_pre_attn_scalar": 20, "sliding_window": 4}
_T5GEMMA = _GEMMA2 | {
    "sliding_window": 7,  # tokens with only padding in their window cannot be compared
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    **_LINEAR,
}
_BART = SIDES | {
    "max_position_embeddings": 20,
    "scale_embedding": True,
    "pad_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 5,
}
_T5 = {
    "vocab_size": 131,
    "d_model": 48,
    "d_kv": 10,
    "d_ff": 56,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "decoder_start_token_id": 0,
}
_TEXT_TOWER = _NEOX | {"max_position_embeddings": 17}
_PATCHES = {**SIZES, **MLP, "patch_size": 4, "num_channels": 2}
_VISION_TOWER = _PATCHES | {"image_size": 13}
_FLEXIBLE_TOWER = _PATCHES | {"num_patches": 9}

_CROSS = {"is_decoder": True, "add_cross_attention": True, "vocab_size": 113}
_GPT2 = _GPT | _CROSS | {"model_type": "gpt2"}
TINY: dict[str, dict[str, Any]] = {
    **IMAGES,
    **SOUNDS,
    "marian": _BART,
    "bert": _BERT,
    "big_bird": _BERT
    | {
        "max_position_embeddings": 40,
        "block_size": 3,
        "num_random_blocks": 2,
        "hidden_act": "relu",
        "rescale_embeddings": True,
        "sep_token_id": 7,
    },
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "xlm-roberta-xl": _ROBERTA,
    "roberta-prelayernorm": _ROBERTA,
    "roformer": _BERT | {"embedding_size": 20, "hidden_act": "silu", "type_vocab_size": 3},
    "distilbert": {
        "vocab_size": 131,
        "dim": 48,
        "n_layers": 3,
        "n_heads": 6,
        "hidden_dim": 56,
        "max_position_embeddings": 20,
        "activation": "silu",
    },
    "albert": _BERT | {"num_hidden_layers": 4, "num_hidden_groups": 2, "embedding_size": 20},
    "ernie": _BERT | {"use_task_id": True, "task_type_vocab_size": 4, "type_vocab_size": 3},
    "gpt2": _GPT | {"n_inner": 56, "scale_attn_by_inverse_layer_idx": True},
    "openai-gpt": _GPT,
    "gptj": _GPT | {"n_inner": 56, "rotary_dim": 6},
    "gpt_neox": _NEOX
    | _rope("dynamic", rope_theta=100.0, partial_rotary_factor=0.5, factor=4.0)
    | {"max_position_embeddings": 8},
    "llama": _LLAMA
    | {
        "attention_bias": True,
        "mlp_bias": True,
        **_rope(
            "llama3", rope_theta=100.0, low_freq_factor=1.0, high_freq_factor=4.0, **_STRETCHED
        ),
    },
    "mistral": _LLAMA | {"sliding_window": 4},
    "deepseek_v2": _DEEPSEEK
    | {"topk_method": "group_limited_greedy", "routed_scaling_factor": 2.0, "q_lora_rank": None},
    "deepseek_v3": _DEEPSEEK,
    "gpt_oss": _LLAMA
    | {
        "num_hidden_layers": 4,
        "sliding_window": 4,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "swiglu_limit": 1.5,
        "swiglu_alpha": 1.3,
        **_rope("yarn", rope_theta=100.0, truncate=False, **_STRETCHED),
    },
    "olmoe": _PHI3 | {"num_experts": 7, "num_experts_per_tok": 3},
    "qwen2_moe": _PHI3
    | {
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 2,
    },
    "qwen3_moe": _LLAMA
    | {
        "use_sliding_window": True,
        "sliding_window": 4,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        "attention_bias": True,
    },
    "mixtral": _LLAMA | {"num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 4},
    "phi": _NEOX
    | {"num_key_value_heads": 2, "qk_layernorm": True}
    | _rope("linear", rope_theta=100.0, partial_rotary_factor=0.5, factor=4.0),
    "gemma": _GEMMA | _rope("linear", factor=2.5),
    "gemma2": _GEMMA2 | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": _GEMMA2
    | {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "final_logit_softcapping": 3.0,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 200.0, "factor": 3.0},
        },
    },
    "qwen2": _QWEN | _rope("yarn", **_STRETCHED),
    "qwen3": _QWEN | {"attention_bias": True, "tie_word_embeddings": True},
    "phi3": _PHI3
    | {
        "sliding_window": 4,
        "original_max_position_embeddings": 8,
        "partial_rotary_factor": 0.75,
        **_rope(
            "longrope", rope_theta=100.0, short_factor=[1.0, 1.1, 1.3], long_factor=[1.2, 2.0, 3.5]
        ),
    },
    "olmo2": _LLAMA
    | {"attention_bias": True, "max_position_embeddings": 8}
    | _rope("dynamic", factor=2.0),
    "olmo3": _LLAMA
    | {
        "num_hidden_layers": 4,
        "sliding_window": 4,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            "full_attention": {"rope_type": "yarn", "rope_theta": 100.0, **_STRETCHED},
        },
    },
    "granite": _LLAMA
    | {
        "attention_bias": True,
        "mlp_bias": True,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.2,
        "logits_scaling": 6.0,
    },
    "smollm3": _LLAMA
    | {
        "num_hidden_layers": 4,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 4,
        "no_rope_layers": [1, 0, 0, 1],
        "layer_types": ["full_attention", "sliding_attention"] * 2,
    },
    "cohere": _PHI3 | {"attention_bias": True, "use_qk_norm": True, "logit_scale": 0.7},
    "cohere2": _PHI3
    | {"num_hidden_layers": 4, "attention_bias": True, "sliding_window": 4, "logit_scale": 0.7},
    "starcoder2": _PHI3 | {"hidden_act": "silu", "sliding_window": 4},
    "glm": _LLAMA,
    "glm4": _LLAMA,
    "ernie4_5": _LLAMA | {"use_bias": True},
    "t5": _T5,
    "mt5": _T5 | {"feed_forward_proj": "gated-gelu"},
    "t5gemma": {
        "vocab_size": 131,
        "encoder": _T5GEMMA
        | {"hidden_size": 40, "num_attention_heads": 4, "intermediate_size": 52},
        "decoder": _T5GEMMA | {"num_hidden_layers": 2, "num_key_value_heads": 3},
    },
    # Four blocks of a window, and two global tokens.
    "longt5": _T5
    | {
        "feed_forward_proj": "gated-gelu",
        "encoder_attention_type": "transient-global",
        "local_radius": 2,
        "global_block_size": 4,
    },
    "bart": _BART,
    # A small vocabulary, so that some tokens are masked.
    "esm": _BERT
    | {
        "vocab_size": 23,
        "pad_token_id": 3,
        "mask_token_id": 7,
        "max_position_embeddings": 24,
        "position_embedding_type": "rotary",
        "rope_theta": 100.0,
        "token_dropout": True,
        "emb_layer_norm_before": True,
    },
    "eurobert": _LLAMA
    | {"attention_bias": True, "mlp_bias": True, "mask_token_id": 7, **_TOKENS, **_LINEAR},
    "nomic_bert": _BERT | {"type_vocab_size": 3, "pad_token_id": 3, "head_dim": 12, **_LINEAR},
    "electra": _BERT | {"embedding_size": 20, "hidden_act": "silu", "type_vocab_size": 3},
    "mpnet": _BERT | {"hidden_act": "relu"},
    "deberta": _DEBERTA | {"max_relative_positions": 5},
    "deberta-v2": _DEBERTA
    | {
        "max_relative_positions": 9,
        "position_buckets": 6,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
    },
    "modernbert": TEXT
    | {
        "num_hidden_layers": 5,
        "local_attention": 6,
        "hidden_activation": "silu",
        "norm_bias": True,
        "attention_bias": True,
        "mlp_bias": True,
        "classifier_bias": True,
        "classifier_activation": "relu",
        "classifier_pooling": "mean",
        "pad_token_id": 3,
    },
    "umt5": _T5 | {"feed_forward_proj": "gated-gelu"},
    "mbart": _BART,
    "pegasus": _BART,
    "m2m_100": _BART,
    "bloom": {"vocab_size": 131, "hidden_size": 48, "n_head": 6, "n_layer": 3, **_TOKENS},
    "gpt_neo": {
        "vocab_size": 131,
        "hidden_size": 48,
        "num_heads": 6,
        "num_layers": 2,
        "intermediate_size": 56,
        "max_position_embeddings": 20,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 4,
        **_TOKENS,
    },
    "opt": {"vocab_size": 131, **SIZES, "ffn_dim": 56, "max_position_embeddings": 20, **_TOKENS},
    "mpt": {
        "vocab_size": 131,
        "d_model": 48,
        "n_heads": 6,
        "n_layers": 3,
        "max_seq_len": 20,
        "attn_config": {"clip_qkv": 1.5, "softmax_scale": 0.3},
        **_TOKENS,
    },
    "falcon": {
        "vocab_size": 131,
        **SIZES,
        **_TOKENS,
        "ffn_hidden_size": 56,
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "bias": True,
    },
    "stablelm": _NEOX
    | {
        "num_key_value_heads": 2,
        "use_qkv_bias": True,
        "qk_layernorm": True,
        "max_position_embeddings": 20,
    },
    "clip": {
        "text_config": _TEXT_TOWER | {"projection_dim": 36},
        "vision_config": _VISION_TOWER | {"hidden_size": 36, "projection_dim": 44},
        "projection_dim": 40,
        "logit_scale_init_value": 1.5,
    },
    "siglip": {
        "text_config": _TEXT_TOWER | {"projection_size": 36},
        "vision_config": _VISION_TOWER | {"hidden_size": 36},
    },
    "siglip2": {
        "text_config": _TEXT_TOWER | {"projection_size": 36},
        "vision_config": _FLEXIBLE_TOWER | {"hidden_size": 36},
    },
    "vision-text-dual-encoder": {
        "text_config": _ROBERTA | {"model_type": "roberta"},
        "vision_config": VIT | {"model_type": "vit", "hidden_size": 36},
        "projection_dim": 40,
    },
    "clip_text_model": _TEXT_TOWER | {"projection_dim": 40},
    "clip_vision_model": _VISION_TOWER | {"projection_dim": 40},
    "siglip_text_model": _TEXT_TOWER | {"projection_size": 40},
    "siglip_vision_model": _VISION_TOWER,
    "siglip2_text_model": _TEXT_TOWER | {"projection_size": 40},
    "siglip2_vision_model": _FLEXIBLE_TOWER,
    "blenderbot": _BART,
    "blenderbot-small": _BART,
    "xglm": {
        "vocab_size": 131,
        "d_model": 48,
        "num_layers": 3,
        "attention_heads": 6,
        "ffn_dim": 56,
        "max_position_embeddings": 20,
        "pad_token_id": 1,
        "eos_token_id": 2,
    },
    "encoder-decoder": {
        "encoder": _BERT | {"model_type": "bert", "type_vocab_size": 3},
        "decoder": _BERT
        | _CROSS
        | {"model_type": "bert", "hidden_size": 40, "num_attention_heads": 5},
        "pad_token_id": 5,
        "decoder_start_token_id": 3,
    },
    "vision-encoder-decoder": {
        "encoder": VIT | {"model_type": "vit"},
        "decoder": _GPT2 | {"scale_attn_by_inverse_layer_idx": True},
        "pad_token_id": 5,
        "decoder_start_token_id": 3,
    },
    "speech-encoder-decoder": {
        "encoder": {"model_type": "wav2vec2", **SOUNDS["wav2vec2"]},
        "decoder": _GPT2,
        "pad_token_id": 5,
        "decoder_start_token_id": 3,
    },
}
"""`model_type` -> fields of its configuration in transformers."""

LENGTHS = {"big_bird": 33, "BigBirdForCausalLM": 11}
"""`model_type` or class -> row length, if the default is too short to use every part. As a decoder
BigBird has full attention, which transformers uses only for short rows."""
