"""ViT-MAE: ViT that reads some of the patches, and a decoder that restores the others."""

from dataclasses import replace
from functools import partial
from typing import Any

from jaxformer.functional.positions.schemes import Learned
from jaxformer.hub.fields import Computed, ConfigMap, Number
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks.classes import Task
from jaxformer.hub.tasks.images import MaskedAutoencoderTask
from jaxformer.hub.weights.layouts import Same
from jaxformer.hub.weights.weight_map import WeightMap, block
from jaxformer.models import MaskedAutoencoder
from jaxformer.zoo.common.basics import of_head
from jaxformer.zoo.common.vit_like import (
    BLOCK,
    FIELDS,
    LAYOUTS,
    QKV_BIAS,
    module_names,
    names,
    read_patches,
    vit,
    write_patches,
)
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "vit-mae-base",
        vit(
            12,
            768,
            12,
            16,
            position=Learned(max_length=197, learns=False),
            mask_ratio=0.75,
            heads=(MaskedAutoencoder(),),
        ),
        "86M",
        "He et al., 2021, section 4, https://arxiv.org/abs/2111.06377, and the count of ViT's base "
        "in Dosovitskiy et al., 2020, table 1",
        note="the encoder alone",
    ),
)


def _read_patches(hf_config: HFConfig) -> dict[str, Any]:
    values = read_patches(hf_config, prefix=1)
    # The sinusoidal table is in the file.
    return values | {"position": replace(values["position"], learns=False)}


_FIELDS = (
    *FIELDS,
    QKV_BIAS,
    Number("mlp_dim", "intermediate_size", 3072),
    Number("mask_ratio", "mask_ratio", 0.75),
    Computed(_read_patches, write_patches),
    of_head(MaskedAutoencoder, MaskedAutoencoderTask.FIELDS),
)
_HEAD = "heads.reconstruction"
_NAMES = {
    **names("vit"),
    f"{_HEAD}.embed": "decoder.decoder_embed",
    f"{_HEAD}.mask_token": "decoder.mask_token",
    f"{_HEAD}.transformer.inputs.position_table": "decoder.decoder_pos_embed",
    **block(f"{_HEAD}.transformer", "decoder.decoder_layers.{}", BLOCK),
    f"{_HEAD}.transformer.final_norm": "decoder.decoder_norm",
    f"{_HEAD}.output": "decoder.decoder_pred",
}
_LAYOUTS = LAYOUTS | {
    f"{_HEAD}.mask_token": Same(leading=2),
    f"{_HEAD}.transformer.inputs.position_table": Same(leading=1),
}

FORMATS = (
    ModelFormat(
        model_type="vit_mae",
        config_map=ConfigMap(partial(vit, pooler=None), _FIELDS),
        weight_map=lambda config: WeightMap(_NAMES, layouts=_LAYOUTS),
        architectures=(
            Architecture("ViTMAEForPreTraining", MaskedAutoencoderTask()),
            Architecture("ViTMAEModel", Task()),
        ),
        prefix="vit.",
        aliases={r"decoder_encoder\.layer\.": "decoder_layers."}
        | module_names("vit.", decoder=r"decoder\.decoder_layers\.\d+\."),
        # A separate encoder has no decoder.
        harmless=("decoder_*", "norm_pix_loss"),
    ),
)
