"""ViT, the shape of ViT-22B, and DeiT.

DeiT is ViT with a second token, whose state is trained on a teacher's labels.
"""

from functools import partial
from typing import Any

from jaxformer.functional.norms import LayerNorm, RMSNorm
from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Computed, ConfigMap, Number, read_activation, write_activation
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import SequenceClassificationTask, Task
from jaxformer.hub.tasks.images import DistilledClassificationTask, MaskedPixelsTask
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import Classification, VisionConfig
from jaxformer.nn import DotProductAttention, Parallel
from jaxformer.zoo.common.vit_like import (
    FIELDS,
    MASKED_LAYOUTS,
    ONE_TOKEN,
    QKV_BIAS,
    STRIDE,
    module_names,
    names,
    read_patches,
    vit,
    write_patches,
)
from jaxformer.zoo.system import System

_SOURCE = "Dosovitskiy et al., 2020, table 1, https://arxiv.org/abs/2010.11929"

SYSTEMS = (
    System("vit-base-16", vit(12, 768, 12, 16), "86M", _SOURCE, "vit.py:base-16"),
    System(
        "vit-large-16",
        vit(24, 1024, 16, 16),
        "307M",
        _SOURCE,
        "vit.py:large-16",
        note="patches of 32 x 32",
    ),
    System("vit-huge-14", vit(32, 1280, 16, 14), "632M", _SOURCE, "vit.py:huge-14"),
    System(
        "vit-22b",
        vit(
            48,
            6144,
            48,
            14,
            norm=RMSNorm(eps=1e-6),
            residual=Parallel(shared_norm=True),
            self_attention=DotProductAttention(
                output_bias=True, query_key_norm=LayerNorm(eps=1e-6, bias=False)
            ),
            # The mean over the patches replaces the paper's attention pooling.
            class_token=False,
            position=Learned(max_length=16 * 16),
            heads=(Classification(num_labels=1000, pooling="mean"),),
        ),
        "21743M",
        "Dehghani et al., 2023, table 1, https://arxiv.org/abs/2302.05442",
        "vit.py:22b",
        note="the matrices of the blocks",
    ),
)


def _read_pooler(hf_config: HFConfig) -> dict[str, Any]:
    hf_config.expect("pooler_output_size", hf_config.number("hidden_size", 768), None)
    return {"pooler": read_activation(hf_config, "pooler_act", "tanh")}


def _write_pooler(config: VisionConfig) -> dict[str, Any]:
    return {
        "pooler_output_size": config.model_dim,
        "pooler_act": write_activation(config.pooler or "tanh"),
    }


_FIELDS = (
    *FIELDS,
    QKV_BIAS,
    STRIDE,
    Number("mlp_dim", "intermediate_size", 3072),
    Computed(_read_pooler, _write_pooler),
)
_TWO_TOKENS = Computed(partial(read_patches, prefix=2), write_patches)


def _deit_weight_map(config: VisionConfig) -> WeightMap:
    """The names of the tensors; the classifier has another name if there are two."""
    own = names("deit") | {"heads.distillation.output": "distillation_classifier"}
    if len(config.heads) > 1:
        own["heads.label.output"] = "cls_classifier"
    return WeightMap(own, layouts=MASKED_LAYOUTS)


_NO_POOLER = {"pooler": None}
_MASKED = {"pooler": None, "mask_token": True}

FORMATS = (
    ModelFormat(
        model_type="vit",
        config_map=ConfigMap(vit, (*_FIELDS, ONE_TOKEN)),
        weight_map=lambda config: WeightMap(names("vit"), layouts=MASKED_LAYOUTS),
        architectures=(
            Architecture("ViTForImageClassification", SequenceClassificationTask(), _NO_POOLER),
            Architecture("ViTForMaskedImageModeling", MaskedPixelsTask(), _MASKED),
            Architecture("ViTModel", Task()),
        ),
        prefix="vit.",
        aliases=module_names("vit."),
        harmless=("encoder_stride",),
    ),
    ModelFormat(
        model_type="deit",
        config_map=ConfigMap(partial(vit, distillation_token=True), (*_FIELDS, _TWO_TOKENS)),
        weight_map=_deit_weight_map,
        architectures=(
            Architecture("DeiTForImageClassification", SequenceClassificationTask(), _NO_POOLER),
            Architecture(
                "DeiTForImageClassificationWithTeacher", DistilledClassificationTask(), _NO_POOLER
            ),
            Architecture("DeiTForMaskedImageModeling", MaskedPixelsTask(), _MASKED),
            Architecture("DeiTModel", Task()),
        ),
        prefix="deit.",
        aliases=module_names("deit."),
        harmless=("encoder_stride",),
    ),
)
