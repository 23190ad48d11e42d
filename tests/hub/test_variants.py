"""What configurations can say besides what those of small models say: as transformers computes it.

A key is a system, with the end of the name of a class that is not its most usual one.
"""

# long: one entry for each variant

import pytest
from variants import check_variant, each_variant, with_holes

from jaxformer.hub.tasks.multiple_choice import MultipleChoiceTask
from jaxformer.zoo import FORMATS

AS_IT_IS = {"as it is": {}}
DEBERTA2 = {"conv_kernel_size": 0, "share_att_key": False}
GROUP = {"feat_extract_norm": "group", "conv_bias": False}
POST = {"do_stable_layer_norm": False}
STABLE = {"do_stable_layer_norm": True, "feat_extract_norm": "layer", "conv_bias": True}
ADAPTER = {"add_adapter": True}
# The first token of most encoders is a class; others may have padding before it.
PADDINGS = dict.fromkeys(("", "LMHeadModel", "CausalLM"), "left") | {"ForQuestionAnswering": "none"}
OPT_350M = {"350m": {"do_layer_norm_before": False, "word_embed_proj_dim": 20}}
UNREAD = {"an encoder that is not there": {"add_cross_attention": True, "is_decoder": True}}
DENSE_FIRST = {"a dense first layer": {"num_hidden_layers": 3, "mlp_only_layers": [0]}}
VARIANTS = {
    # Decoders.
    "gpt2": {
        "unscaled logits, another activation and a separate table for the output": {
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": False,
            "reorder_and_upcast_attn": True,
            "activation_function": "relu",
            "tie_word_embeddings": False,
            "n_inner": None,
        },
        "an encoder that is not there": {"add_cross_attention": True},
    },
    "gpt_neox": {
        "in sequence and without biases": {
            "use_parallel_residual": False,
            "attention_bias": False,
            "rope_parameters": None,
        },
    },
    "phi": {
        "without norms of query and key": {
            "qk_layernorm": False,
            "num_key_value_heads": None,
            "pad_token_id": None,
        },
    },
    "gpt_neo": {
        "another order of windows": {
            "num_layers": 3,
            "attention_types": [[["global"], 1], [["local"], 2]],
        },
    },
    "opt": OPT_350M
    | {
        "of Galactica": {
            "enable_bias": False,
            "layer_norm_elementwise_affine": False,
            "activation_function": "gelu",
        },
    },
    "opt ForSequenceClassification": OPT_350M,
    "opt ForQuestionAnswering": OPT_350M,
    "mpt": {"without bounds": {"attn_config": {}}},
    "xglm": {
        "without a scale, with tables apart": {
            "scale_embedding": False,
            "tie_word_embeddings": False,
            "activation_function": "relu",
        },
    },
    "bloom": {"whose stream is normalised": {"apply_residual_connection_post_layernorm": True}},
    "falcon": {
        "7b": {"new_decoder_architecture": False, "bias": False},
        "2 11b": {"num_ln_in_parallel_attn": 1, "bias": False},
        "rw": {
            "new_decoder_architecture": False,
            "num_kv_heads": None,
            "multi_query": False,
            "parallel_attn": False,
            "alibi": True,
        },
    },
    "stablelm": {
        "side by side": {
            "use_parallel_residual": True,
            "qk_layernorm": False,
            "use_qkv_bias": False,
        },
    },
    **dict.fromkeys(("qwen2_moe", "qwen3_moe"), DENSE_FIRST),
    # Encoders of texts.
    "bert LMHeadModel": AS_IT_IS | UNREAD,
    "roformer CausalLM": UNREAD,
    **dict.fromkeys(("roberta CausalLM", "electra CausalLM", "ernie CausalLM"), AS_IT_IS),
    **{
        f"{kind} MultipleChoice": AS_IT_IS
        for kind, each in FORMATS.items()
        if any(isinstance(c.task, MultipleChoiceTask) for c in each.architectures)
    },
    "distilbert": {"sinusoids in its table": {"sinusoidal_pos_embds": True}},
    "ernie": {"without tasks": {"use_task_id": False}},
    "electra": {"as wide as its embeddings": {"embedding_size": 48}},
    "albert": {
        "one layer": {"num_hidden_groups": 1, "hidden_act": "gelu"},
        "groups of two layers": {"inner_group_num": 2},
        "another layer at each depth": {
            "num_hidden_layers": 2,
            "num_hidden_groups": 2,
            "inner_group_num": 3,
        },
    },
    "modernbert": {
        "without biases": {
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "decoder_bias": False,
            "classifier_bias": False,
            "tie_word_embeddings": False,
        },
        "another order of windows, and scaled": {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
        "without windows": {
            "num_hidden_layers": 2,
            "layer_types": ["full_attention", "full_attention"],
        },
    },
    "modernbert SequenceClassification": {"of the first token": {"classifier_pooling": "cls"}},
    "xlm-roberta-xl": {"one type": {"hidden_act": "gelu", "type_vocab_size": 1}},
    "eurobert": {
        "without biases, tied": {
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "num_key_value_heads": None,
            "head_dim": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
    },
    "eurobert SequenceClassification": {
        pooling: {"classifier_pooling": pooling} for pooling in ("bos", "mean", "late")
    },
    "esm": {
        "learned positions": {
            "position_embedding_type": "absolute",
            "token_dropout": False,
            "emb_layer_norm_before": None,
            "tie_word_embeddings": False,
        },
        "learned positions and all the rest": {"position_embedding_type": "absolute"},
    },
    "nomic_bert": {"GELU": {"hidden_act": "gelu", "head_dim": None}},
    "roformer": {
        "rotated values, as wide as its embeddings": {
            "rotary_value": True,
            "embedding_size": None,
        },
    },
    "big_bird": {
        "full attention": {
            "attention_type": "original_full",
            "rescale_embeddings": False,
            "use_bias": False,
        },
        "one random block": {"num_random_blocks": 1},
    },
    "deberta": {
        "content to position": {"pos_att_type": ["c2p"], "type_vocab_size": 0},
        "position to content": {"pos_att_type": "p2c", "max_relative_positions": -1},
        "vectors without terms": {"pos_att_type": "none"},
        "a scale without terms": {"relative_attention": False},
        "neither": {"relative_attention": False, "pos_att_type": None},
        "distances alone, and narrow embeddings": {
            "position_biased_input": False,
            "embedding_size": 20,
        },
        "the newer head": {"legacy": False},
    },
    "deberta-v2": {
        "separate projections": DEBERTA2,
        "one separate projection": DEBERTA2 | {"pos_att_type": ["p2c"]},
        "no buckets": DEBERTA2 | {"position_buckets": -1, "norm_rel_ebd": "none"},
        "no terms": DEBERTA2 | {"pos_att_type": [], "norm_rel_ebd": "none"},
        "a wide convolution, the newer head": {
            "conv_kernel_size": 5,
            "conv_act": "tanh",
            "legacy": False,
            "tie_word_embeddings": False,
        },
        "shared projections, one term": {
            "pos_att_type": "c2p",
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        "without distances": DEBERTA2 | {"relative_attention": False, "norm_rel_ebd": "none"},
    },
    # Encoder-decoders.
    "t5": {
        "a gate": {"feed_forward_proj": "gated-silu", "num_decoder_layers": 4},
        "the approximation of gelu": {"feed_forward_proj": "gated-gelu"},
        "gelu itself": {"feed_forward_proj": "gelu", "tie_word_embeddings": False},
    },
    "mt5": {"without a gate": {"feed_forward_proj": "relu"}},
    "bart": {
        "of its published files": {
            "scale_embedding": False,
            "num_hidden_layers": 3,
            "normalize_embedding": True,
        },
    },
    "marian": {"two tables": {"share_encoder_decoder_embeddings": False}},
    "longt5": {
        "a window alone": {"encoder_attention_type": "local"},
        "a window of one token": {"local_radius": 0},
        "rows shorter than a block": {"global_block_size": 16},
        "without a gate": {
            "feed_forward_proj": "relu",
            "tie_word_embeddings": False,
            "num_decoder_layers": 4,
        },
    },
    # Images.
    **{f"{kind} ForMaskedImageModeling": AS_IT_IS for kind in ("vit", "deit", "beit")},
    **{f"{kind} ForImageClassification": AS_IT_IS for kind in ("clip", "siglip", "siglip2")},
    "vit": {
        "without biases of query, key and value": {
            "qkv_bias": False,
            "image_size": 12,
            "patch_size": 4,
            "hidden_act": "gelu_new",
        },
    },
    "beit": {
        "neither a mean nor a token": {"use_mean_pooling": False, "use_mask_token": False},
        "no scales": {"layer_scale_init_value": 0.0, "use_absolute_position_embeddings": True},
        "one bias": {
            "use_relative_position_bias": False,
            "use_shared_relative_position_bias": True,
        },
        "no bias": {"use_relative_position_bias": False, "hidden_act": "relu"},
    },
    "dinov2": {"SwiGLU": {"use_swiglu_ffn": True, "use_mask_token": False}},
    "dinov3_vit": {
        "gated": {},
        "without gates and registers": {
            "use_gated_mlp": False,
            "num_register_tokens": 0,
            "proj_bias": False,
        },
        "all biases": {"key_bias": True, "image_size": 12, "patch_size": 4},
        "no biases": {"query_bias": False, "value_bias": False, "mlp_bias": False},
    },
    "vit_mae": {
        "plain pixels": {"norm_pix_loss": False, "hidden_act": "gelu_new"},
        "few masks": {"mask_ratio": 0.2, "qkv_bias": False},
    },
    # The towers of CLIP and SigLIP.
    **{
        f"{kind} {each.name}": AS_IT_IS
        for kind, format in FORMATS.items()
        if "lip" in kind and "_" in kind
        for each in format.architectures
    },
    "clip_text_model": {"gelu": {"hidden_act": "gelu", "projection_dim": 48}},
    "clip_vision_model": {"gelu": {"hidden_act": "gelu", "image_size": 12}},
    "siglip_text_model": {"another width": {"projection_size": None}},
    "siglip_vision_model": {"without a head": {"vision_use_head": False}},
    # Sounds.
    "wav2vec2": {
        "as the base models": GROUP | POST,
        "the published convolutions": GROUP
        | POST
        | {
            "conv_dim": [24] * 7,
            "conv_kernel": [10, 3, 3, 3, 3, 2, 2],
            "conv_stride": [5, 2, 2, 2, 2, 2, 2],
        },
        "a norm over time before stable layers": GROUP,
        "layer norms before others": POST,
        "the mean of losses": {"ctc_loss_reduction": "mean"},
        "an odd kernel": {"num_conv_pos_embeddings": 5},
        "without masks": {"mask_time_prob": 0.0},
        "an adapter": ADAPTER,
        "a narrower adapter": POST | ADAPTER | {"output_hidden_size": 20, "num_adapter_layers": 1},
        "another adapter": ADAPTER
        | {"num_adapter_layers": 2, "adapter_stride": 3}
        | {"adapter_kernel_size": 2, "output_hidden_size": 40},
    },
    "wav2vec2 PreTraining": {"base": GROUP | POST, "large": {}},
    "wav2vec2 SequenceClassification": {
        "with the last layer": {"use_weighted_layer_sum": False},
        "with all layers": POST,
    },
    "hubert": {
        "as the large models": STABLE,
        "without a norm of frames": {"feat_proj_layer_norm": False},
    },
    "hubert SequenceClassification": {"with all layers": {"use_weighted_layer_sum": True}},
}


@pytest.mark.torch
@each_variant(VARIANTS)
@pytest.mark.quick(
    "mpt without*", "qwen2_moe*", "opt ForQ*", "bert LMHeadModel an*", "deberta distances*",
    "roformer rot*", "eurobert*late", "vit ForM*", "siglip ForI*", "beit neither*",
    "dinov3_vit gated", "vit_mae few*", "clip_text_model gelu", "*SiglipVisionModel*",
)  # fmt: skip
def test_variants(kind, changes, tmp_path):
    system, _, head = kind.partition(" ")
    check_variant(tmp_path, system, changes, head, padding=PADDINGS.get(head, "right"))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["bloom", "opt", "falcon"])
@pytest.mark.quick("bloom")
def test_positions_that_are_counted_skip_padding_between_tokens(kind, tmp_path):
    changes = VARIANTS["falcon"]["rw"] if kind == "falcon" else {}
    check_variant(tmp_path, kind, changes, inputs=with_holes)
