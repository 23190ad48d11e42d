"""Unsupported fields of config.json are refused by name before any weight is read."""

import re

import pytest
from published_files import FILES

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.tiny import TINY
from jaxformer.zoo import FORMATS

UNSUPPORTED = "is not supported"
SLIDING = "sliding_attention"
GEMMA3, PHI35, SMOLLM3 = FILES["Gemma 3"], FILES["Phi-3.5"], FILES["SmolLM 3"]
T5GEMMA, MPT = FILES["t5gemma-9b-2b"], FILES["mpt-7b-storywriter"]["attn_config"]


def tiny(kind, **changes):
    return {"model_type": kind, **TINY[kind], **changes}


def composite(part, **changes):
    """The fields of an encoder-decoder, one of whose parts has others."""
    values = tiny("encoder-decoder")
    return values | {part: values[part] | changes}


def with_naflex(kind, part):
    """The fields of a model of several parts, of which one reads images of many shapes."""
    tower = "siglip2_vision_model"
    return tiny(kind, **{part: TINY[tower] | {"model_type": tower}})


def bert(name=None, **fields):
    architectures = {} if name is None else {"architectures": [name]}
    return {"model_type": "bert"} | architectures | fields


ROWS = [
    # A class and its fields.
    (
        bert("BertLMHeadModel"),
        r"is_decoder = False, but architectures = \['BertLMHeadModel'\]: must be True",
    ),
    (
        bert("BertForMaskedLM", is_decoder=True),
        r"must be False for this class, or architectures = \['BertLMHeadModel'\]",
    ),
    (bert("BertModel", is_decoder=True), "must be False for this class"),
    (bert(is_decoder=True), "BertForPreTraining"),
    (tiny("albert", is_decoder=True), f"is_decoder = True {UNSUPPORTED}"),
    (
        bert("BertModel", is_decoder=False, add_cross_attention=True),
        "add_cross_attention = True: must be false",
    ),
    # Decoders that see both ways in some layers alone.
    *(
        (tiny(kind, is_causal=False), "is_causal = False")
        for kind in ("stablelm", "gpt2", "bloom", "gemma3_text")
    ),
    # Activations, windows and positions.
    (FILES["Llama 2"] | {"hidden_act": "mish"}, f"hidden_act = 'mish' {UNSUPPORTED}"),
    (bert(hidden_act="mish"), f"hidden_act = 'mish' {UNSUPPORTED}"),
    (FILES["Gemma 2"] | {"hidden_act": "relu"}, f"hidden_act = 'relu' {UNSUPPORTED}"),
    (GEMMA3 | {"layer_types": [SLIDING]}, r"layer_types = .*: must be 26 times"),
    (GEMMA3 | {"layer_types": ["chunked"] * 26}, "must be 26 times"),
    (GEMMA3 | {"sliding_window": None}, "there is no sliding_window"),
    (FILES["Qwen 2.5"] | {"layer_types": [SLIDING] * 28}, "there is no sliding_window"),
    (PHI35 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, "only longrope"),
    (PHI35 | {"full_attn_mod": 2}, f"full_attn_mod = 2 {UNSUPPORTED}"),
    (SMOLLM3 | {"no_rope_layers": [1, 0]}, "no_rope_layers = .*: must be"),
    (SMOLLM3 | {"no_rope_layers": [2] * 36}, "no_rope_layers = .*: must be"),
    (tiny("gpt_neo", attention_types=[[["global", "sideways"], 1]]), "attention_types = "),
    (tiny("gpt_neo", attention_types=[[["global"], 3]]), "attention_types = "),
    (tiny("gpt_neo", attention_types="global"), "attention_types = "),
    (tiny("gpt_neo", attention_layers=["local", "local"]), "attention_layers = "),
    (
        tiny("beit", use_relative_position_bias=True, use_shared_relative_position_bias=True),
        "must not both be true",
    ),
    # What GPT's relatives may not say.
    ({"model_type": "bloom", "n_head": 8, "num_attention_heads": 16}, "and n_head = 8"),
    (
        {"model_type": "mpt", "attn_config": MPT | {"alibi": False}},
        f"attn_config: alibi = False {UNSUPPORTED}",
    ),
    (
        {"model_type": "opt", "_remove_final_layer_norm": True},
        f"_remove_final_layer_norm = True {UNSUPPORTED}",
    ),
    ({"model_type": "xglm", "pad_token_id": 5}, "pad_token_id = 5: must be 0, 1 or null"),
    ({"model_type": "gpt2", "tie_word_embeddings": "yes"}, "= 'yes': must be true or false"),
    # Experts.
    (
        tiny("qwen3_moe", mlp_only_layers=[1]),
        r"mlp_only_layers = \[1\] and decoder_sparse_step = 1 make",
    ),
    (tiny("qwen3_moe", mlp_only_layers="0"), "mlp_only_layers = '0'"),
    (tiny("qwen3_moe", decoder_sparse_step=0), "decoder_sparse_step = 0"),
    (tiny("qwen3_moe", num_experts_per_tok=9), "per_token = 9"),
    (tiny("qwen3_moe", norm_topk_prob="yes"), "norm_topk_prob"),
    # Models of several parts.
    (T5GEMMA | {"is_encoder_decoder": False}, "T5GemmaForConditionalGeneration.* is not known"),
    (T5GEMMA | {"architectures": ["T5GemmaEncoderModel"]}, "T5GemmaEncoderModel.* is not known"),
    (T5GEMMA | {"encoder": 3}, "encoder = 3: must be an object"),
    (
        T5GEMMA | {"encoder": T5GEMMA["encoder"] | {"hidden_activation": "mish"}},
        "hidden_activation",
    ),
    (tiny("encoder-decoder", encoder=None), "encoder = None: must be an object"),
    (tiny("encoder-decoder", tie_encoder_decoder=True), "tie_encoder_decoder = True"),
    (
        composite("decoder", model_type="gpt3"),
        "decoder: model_type = 'gpt3' is not known",
    ),
    (
        composite("decoder", model_type="llama"),
        "decoder: model_type = 'llama' is not a decoder with cross-attention",
    ),
    (composite("decoder", add_cross_attention=False), "add_cross_attention must be"),
    (composite("encoder", model_type="vit"), "must be an encoder of text"),
    (composite("encoder", model_type="gpt2"), "must be an encoder of text"),
    (
        composite("encoder", position_embedding_type="relative_key"),
        f"config.json: encoder: position_embedding_type = 'relative_key' {UNSUPPORTED}",
    ),
    (
        with_naflex("vision-encoder-decoder", "encoder"),
        "must be an encoder of images of one shape",
    ),
    (
        with_naflex("vision-text-dual-encoder", "vision_config"),
        "must read images of one shape",
    ),
    # Sounds.
    (tiny("wav2vec2", add_adapter="yes"), "add_adapter = 'yes'"),
    (tiny("wav2vec2", adapter_attn_dim=16), "adapter_attn_dim = 16"),
    (tiny("wav2vec2", feat_extract_norm="batch"), "feat_extract_norm = 'batch'"),
    (tiny("wav2vec2", conv_kernel="5"), "conv_kernel"),
    (tiny("wav2vec2", conv_stride=[3, 2]), r"strides = \(3, 2\)"),
    (tiny("wav2vec2", num_conv_pos_embedding_groups=7), "groups = 7"),
    (tiny("hubert", conv_pos_batch_norm=True), f"conv_pos_batch_norm = True {UNSUPPORTED}"),
]
ANY = "vision-text-dual-encoder"
NAFLEX = "siglip2_vision_model"
EXPERTS = {"num_experts_per_tok": 6}
MAX_POOLING = {
    "architectures": ["EuroBertForSequenceClassification"],
    "classifier_pooling": "max",
}
TRANSIENT = {"encoder_attention_type": "transient-global"}
UNPOOLED = {
    "text_config": TINY["distilbert"] | {"model_type": "distilbert"},
    "vision_config": TINY["vit"] | {"model_type": "vit"},
}
# Systems, what their files say, and a part of the message.
OF_SYSTEMS = [
    ("albert", {"inner_group_num": 0}, "inner_group_num = 0"),
    ("albert", {"inner_group_num": 10**9}, "inner_group_num = 1000000000"),
    ("albert", {"num_hidden_layers": 4, "num_hidden_groups": 3}, "does not divide"),
    ("albert", {"embedding_size": 64, "hidden_size": 64}, "embedding_size = 64"),
    ("mpnet", {"pad_token_id": 0}, "pad_token_id = 0 is not supported"),
    ("eurobert", MAX_POOLING, "classifier_pooling = 'max'"),
    ("nomic_bert", {"qkv_proj_bias": True}, "qkv_proj_bias = True"),
    ("nomic_bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor = 2"),
    ("esm", {"is_folding_model": True}, "is_folding_model = True"),
    ("esm", {"vocab_size": 33, "pad_token_id": 1, "token_dropout": True}, "mask_token_id"),
    ("esm", {"vocab_size": 33, "position_embedding_type": "x"}, "position_embedding_type"),
    ("modernbert", {"sparse_prediction": True}, "sparse_prediction = True"),
    ("deberta-v2", {"talking_head": True}, "talking_head = True"),
    ("deberta-v2", {"z_steps": 2}, "z_steps = 2"),
    ("deberta-v2", {"pos_att_type": "c2p|p2p"}, "pos_att_type = 'c2p|p2p'"),
    ("deberta-v2", {"conv_kernel_size": 4}, "kernel_size = 4"),
    ("deberta-v2", {"conv_kernel_size": 3, "conv_groups": 2}, "conv_groups = 2"),
    ("deberta-v2", {"attention_head_size": 8}, "attention_head_size = 8"),
    ("deberta-v2", {"pooler_hidden_size": 8}, "pooler_hidden_size = 8"),
    ("deberta-v2", {"pooler_hidden_act": "silu"}, "pooler_hidden_act = 'silu'"),
    ("deberta-v2", {"relative_attention": True, "position_buckets": 7}, "num_buckets = 7"),
    ("big_bird", {"attention_type": "sparse"}, "attention_type = 'sparse'"),
    ("big_bird", {"block_size": 0}, "block_size = 0"),
    ("longt5", {"encoder_attention_type": "global"}, "encoder_attention_type = 'global'"),
    ("longt5", {"local_radius": -1}, "windows = (0,)"),
    ("longt5", TRANSIENT | {"global_block_size": 0}, "block_size = 0"),
    ("t5", {"feed_forward_proj": "gated-prelu"}, "'prelu' is not supported"),
    ("bart", {"encoder_attention_heads": 15}, "encoder_heads = 15: must be a divisor of 1024"),
    ("bart", {"num_hidden_layers": 3, "encoder_layers": 4}, "two names of one field"),
    ("marian", {"decoder_vocab_size": 7}, "decoder_vocab_size = 7 is not supported"),
    ("deepseek_v2", EXPERTS | {"scoring_func": "sigmoid"}, "scoring_func"),
    ("deepseek_v2", EXPERTS | {"topk_method": "noaux_tc"}, "topk_method"),
    ("deepseek_v2", EXPERTS | {"norm_topk_prob": True}, "norm_topk_prob"),
    ("deepseek_v2", EXPERTS | {"mlp_bias": True}, "mlp_bias"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method"),
    ("deepseek_v3", {"n_group": 7}, "groups"),
    ("vit", {"pooler_output_size": 10}, "pooler_output_size = 10"),
    ("vit", {"image_size": 30}, "patch_size"),
    ("dinov3_vit", {"query_bias": False}, "query_bias = False, key_bias = False"),
    ("dinov3_vit", {"num_register_tokens": -1}, "register_tokens"),
    ("clip_text_model", {"eos_token_id": [4, 5]}, "eos_token_id"),
    ("clip_text_model", {"projection_dim": None}, "projection_dim = None"),
    ("clip_text_model", {"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
    ("clip_vision_model", {"image_size": [224, 112]}, "image_size"),
    (NAFLEX, {"num_patches": 12}, "num_patches = 12: must be a square number"),
    (NAFLEX, {"num_patches": 0}, "num_patches = 0: must be a square number"),
    (NAFLEX, {"patch_size": [4, 4]}, "patch_size"),
    (NAFLEX, {"hidden_act": "mish"}, "hidden_act = 'mish' is not supported"),
    (ANY, {"text_config": {}}, "text_config: model_type = None"),
    (
        ANY,
        {"text_config": {"model_type": "brt"}, "vision_config": {}},
        "'brt': must be a model with a pooled state",
    ),
    (ANY, UNPOOLED, "text_config: the model must have a pooled state"),
    ("clip", {"text_config": 3}, "text_config = 3: must be an object"),
    ("clip", {"vision_config": {"hidden_act": "mish"}}, "hidden_act = 'mish'"),
]
ROWS += [({"model_type": kind} | x, re.escape(message)) for kind, x, message in OF_SYSTEMS]
# What is ignored unless it is asked to be refused.
STRICT = [
    ({"model_type": "clip_vision_model", "vision_use_head": True}, "vision_use_head = True"),
    ({"model_type": "siglip_vision_model", "projection_dim": 3}, "projection_dim = 3"),
    ({"model_type": "siglip", "text_config": {"depth": 3}}, r"text_config\.depth = 3"),
]


@pytest.mark.parametrize(("values", "message"), ROWS + STRICT)
def test_what_is_not_supported_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(HFConfig(values), FORMATS, strict=(values, message) in STRICT)
