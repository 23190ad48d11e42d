"""Config.json of published systems: what ours are written as, and what is refused."""

import re

import pytest

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.tiny import TINY
from jaxformer.zoo import FORMATS, SYSTEMS

# The system that a size is written as, where each of all could be chosen.
WRITTEN = {
    "llama2-70b": "llama",
    "llama3.2-1b": "llama",
    "mistral-7b": "mistral",
    "gemma-2b": "gemma",
    "olmo3-7b": "olmo3",
    "smollm3-3b": "smollm3",
    "granite-3.0-8b": "granite",
    "command-r-plus-104b": "cohere",
    "command-r7b": "cohere2",
    "starcoder2-3b": "starcoder2",
    "glm-4-9b": "glm",
    "glm-4-32b-0414": "glm4",
    "ernie-4.5-0.3b": "ernie4_5",
    "t5-small": "t5",
    "t5-v1.1-small": "t5",
    "byt5-small": "t5",
    "bart-base": "bart",
    "blenderbot-3b": "blenderbot",
    "blenderbot-small-90m": "blenderbot-small",
    "xglm-564m": "xglm",
    "bert-base": "bert",
    "roberta-base": "roberta",
    "xlm-roberta-xl": "xlm-roberta-xl",
    "eurobert-610m": "eurobert",
    "esm2-650m": "esm",
    "nomic-embed-text-v1.5": "nomic_bert",
    "albert-base": "albert",
    "ernie-3.0-base-zh": "ernie",
    "vit-base-16": "vit",
    "vit-mae-base": "vit_mae",
    "dinov3-vit7b16": "dinov3_vit",
}
# Those that another system comes before, which can say the same.
ALSO_WRITTEN = {
    "mt5-small": "mt5",
    "camembert-base": "camembert",
    "distilbert-base": "distilbert",
}


@pytest.mark.parametrize(("name", "model_type"), WRITTEN.items(), ids=WRITTEN)
def test_sizes_of_the_zoo_can_be_said(name, model_type):
    assert describe(SYSTEMS[name].config, FORMATS.values()).model_format.model_type == model_type


@pytest.mark.parametrize(("name", "model_type"), ALSO_WRITTEN.items(), ids=ALSO_WRITTEN)
def test_sizes_can_be_said_in_another_way(name, model_type):
    checkpoint = describe(SYSTEMS[name].config, [FORMATS[model_type]])
    assert checkpoint.model_format.model_type == model_type


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
REFUSED = [
    ("bert", {"is_decoder": True}, "is_decoder = True, but architectures"),
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
    ("clip_vision_model", {"vision_use_head": True}, "vision_use_head = True"),
    ("siglip_vision_model", {"projection_dim": 3}, "projection_dim = 3"),
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
    ("siglip", {"text_config": {"depth": 3}}, "text_config.depth = 3"),
]


@pytest.mark.parametrize(("model_type", "values", "message"), REFUSED)
def test_what_is_not_supported_is_refused(model_type, values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_checkpoint(HFConfig({"model_type": model_type} | values), FORMATS, strict=True)
