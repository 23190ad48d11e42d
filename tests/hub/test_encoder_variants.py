"""What encoders and vision models can say besides what their small models say."""

import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_outputs, check_variant, models

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import read_checkpoint
from jaxformer.hub.describe import describe
from jaxformer.hub.hf_config import HFConfig
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward
from jaxformer.zoo import FORMATS, SYSTEMS

pytestmark = pytest.mark.torch

VARIANTS = {
    "distilbert with sinusoids in its table": ("distilbert", {"sinusoidal_pos_embds": True}),
    "ernie without tasks": ("ernie", {"use_task_id": False}),
    "electra as wide as its embeddings": ("electra", {"embedding_size": 48}),
    "albert with one layer": ("albert", {"num_hidden_groups": 1, "hidden_act": "gelu"}),
    "albert with groups of two layers": ("albert", {"inner_group_num": 2}),
    "albert with a layer of its own at each depth": (
        "albert",
        {"num_hidden_layers": 2, "num_hidden_groups": 2, "inner_group_num": 3},
    ),
    "modernbert without biases": (
        "modernbert",
        {
            "norm_bias": False,
            "attention_bias": False,
            "mlp_bias": False,
            "decoder_bias": False,
            "classifier_bias": False,
            "tie_word_embeddings": False,
        },
    ),
    "modernbert with another order of windows, and scaled": (
        "modernbert",
        {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 900.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
    "modernbert without windows": (
        "modernbert",
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "full_attention"]},
    ),
    "xlm-roberta-xl with one type": (
        "xlm-roberta-xl",
        {"hidden_act": "gelu", "type_vocab_size": 1},
    ),
    "eurobert without biases, tied": (
        "eurobert",
        {
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": True,
            "num_key_value_heads": None,
            "head_dim": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
        },
    ),
    "esm with learned positions": (
        "esm",
        {
            "position_embedding_type": "absolute",
            "token_dropout": False,
            "emb_layer_norm_before": None,
            "tie_word_embeddings": False,
        },
    ),
    "esm with learned positions and all the rest": ("esm", {"position_embedding_type": "absolute"}),
    "nomic_bert with GELU": ("nomic_bert", {"hidden_act": "gelu", "head_dim": None}),
    "roformer with rotated values, as wide as its embeddings": (
        "roformer",
        {"rotary_value": True, "embedding_size": None},
    ),
    "vit without biases of query, key and value": (
        "vit",
        {"qkv_bias": False, "image_size": 12, "patch_size": 4, "hidden_act": "gelu_new"},
    ),
    "dinov2 with SwiGLU": ("dinov2", {"use_swiglu_ffn": True, "use_mask_token": False}),
}


@pytest.mark.parametrize(("model_type", "changes"), VARIANTS.values(), ids=VARIANTS)
@pytest.mark.quick("roformer*")
def test_variants(model_type, changes, tmp_path):
    check_variant(tmp_path, model_type, changes)


@pytest.mark.parametrize(
    ("model_type", "pooling"),
    [("modernbert", "cls"), ("eurobert", "bos"), ("eurobert", "mean"), ("eurobert", "late")],
)
@pytest.mark.more
@pytest.mark.quick("eurobert-late")
def test_poolings_of_a_classifier(model_type, pooling, tmp_path):
    def padded(checkpoint):
        return example_inputs(checkpoint, "right")

    changes = {"classifier_pooling": pooling}
    check_variant(tmp_path, model_type, changes, "SequenceClassification", padded)


@pytest.mark.parametrize("model_type", ["roberta", "mpnet"])
@pytest.mark.slow
def test_padding_that_no_mask_hides_is_seen_and_not_counted(model_type, tmp_path):
    def unhidden(checkpoint):
        inputs = example_inputs(checkpoint, "left")
        return {name: array for name, array in inputs.items() if name != "attention_mask"}

    check_variant(tmp_path, model_type, {}, inputs=unhidden)


@pytest.mark.slow
def test_labels_of_several_kinds(tmp_path):
    """Several labels for each row, and a number."""
    for labels, values in ((3, np.eye(3, dtype=np.float32)), (1, np.array([0.5, -1, 2], "f4"))):
        folder = tmp_path / str(labels)

        def with_labels(checkpoint, values=values):
            return example_inputs(checkpoint, "right") | {"labels": values}

        check_variant(folder, "bert", {"num_labels": labels}, "SequenceClassification", with_labels)


@pytest.mark.parametrize("model_type", ["dinov2", "dinov3_vit"])
@pytest.mark.quick("dinov2")
def test_masked_patches(model_type, tmp_path):
    changes = {"image_size": 12, "patch_size": 4}
    ours, theirs = models(save_tiny(model_type, tmp_path, "Model", **changes))
    masked = np.arange(27).reshape(3, 9) % 4 == 1
    check_outputs(ours, theirs, example_inputs(ours.checkpoint) | {"bool_masked_pos": masked})


def test_patches_cannot_be_masked_without_a_token(tmp_path):
    ours = load(save_tiny("vit", tmp_path))
    masked = {"bool_masked_pos": np.ones((3, 8), bool)}
    with pytest.raises(DataError, match="bool_masked_pos"):
        forward(ours, example_inputs(ours.checkpoint) | masked)


@pytest.mark.parametrize(
    ("model_type", "values", "message"),
    [
        ("bert", {"is_decoder": True}, "is_decoder = True, but architectures"),
        ("albert", {"inner_group_num": 0}, "inner_group_num = 0"),
        ("albert", {"inner_group_num": 10**9}, "inner_group_num = 1000000000"),
        ("albert", {"num_hidden_layers": 4, "num_hidden_groups": 3}, "does not divide"),
        ("albert", {"embedding_size": 64, "hidden_size": 64}, "embedding_size = 64"),
        ("mpnet", {"pad_token_id": 0}, "pad_token_id = 0 is not supported"),
        (
            "eurobert",
            {
                "architectures": ["EuroBertForSequenceClassification"],
                "classifier_pooling": "max",
            },
            "classifier_pooling = 'max'",
        ),
        ("nomic_bert", {"qkv_proj_bias": True}, "qkv_proj_bias = True"),
        ("esm", {"is_folding_model": True}, "is_folding_model = True"),
        ("esm", {"vocab_size": 33, "pad_token_id": 1, "token_dropout": True}, "mask_token_id"),
        ("esm", {"vocab_size": 33, "position_embedding_type": "x"}, "position_embedding_type"),
        ("nomic_bert", {"rotary_scaling_factor": 2}, "rotary_scaling_factor = 2"),
        ("modernbert", {"sparse_prediction": True}, "sparse_prediction = True"),
        ("vit", {"pooler_output_size": 10}, "pooler_output_size = 10"),
        ("vit", {"image_size": 30}, "patch_size"),
        ("dinov3_vit", {"query_bias": False}, "query_bias = False, key_bias = False"),
        ("dinov3_vit", {"num_register_tokens": -1}, "register_tokens"),
    ],
)
def test_what_is_not_supported_is_refused(model_type, values, message):
    with pytest.raises(ConfigError, match=message):
        read_checkpoint(HFConfig({"model_type": model_type} | values), FORMATS, strict=True)


@pytest.mark.parametrize(
    ("name", "model_type"),
    [
        ("bert-base", "bert"),
        ("roberta-base", "roberta"),
        ("camembert-base", "camembert"),
        ("xlm-roberta-xl", "xlm-roberta-xl"),
        ("eurobert-610m", "eurobert"),
        ("esm2-650m", "esm"),
        ("nomic-embed-text-v1.5", "nomic_bert"),
        ("distilbert-base", "distilbert"),
        ("albert-base", "albert"),
        ("ernie-3.0-base-zh", "ernie"),
        ("vit-base-16", "vit"),
        ("vit-mae-base", "vit_mae"),
        ("dinov3-vit7b16", "dinov3_vit"),
    ],
)
def test_systems_of_the_zoo_can_be_said(name, model_type):
    checkpoint = describe(SYSTEMS[name].config, [FORMATS[model_type]])
    assert checkpoint.model_format.model_type == model_type
