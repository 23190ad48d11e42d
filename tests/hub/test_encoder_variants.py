"""What encoders and vision models can say besides what their small models say."""

import numpy as np
import pytest
from saved_folders import save_tiny
from variants import check_outputs, check_variant, models

from jaxformer.errors import DataError
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward

pytestmark = pytest.mark.torch

VARIANTS = {
    "distilbert with sinusoids in its table": ("distilbert", {"sinusoidal_pos_embds": True}),
    "ernie without tasks": ("ernie", {"use_task_id": False}),
    "electra as wide as its embeddings": ("electra", {"embedding_size": 48}),
    "albert with one layer": ("albert", {"num_hidden_groups": 1, "hidden_act": "gelu"}),
    "albert with groups of two layers": ("albert", {"inner_group_num": 2}),
    "albert with another layer at each depth": (
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
    changes = {"classifier_pooling": pooling}
    check_variant(tmp_path, model_type, changes, "SequenceClassification", padding="right")


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
