"""Configurations of small image models with odd sizes, see `parity.tiny`."""

from typing import Any

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6}
MLP = {"intermediate_size": 56}
TEXT = {"vocab_size": 131, **SIZES, **MLP}
SIDES = {
    "vocab_size": 131,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 56,
}
"""The sizes of an encoder-decoder in BART's words."""
VIT = {**SIZES, **MLP, "image_size": [8, 12], "patch_size": [4, 3], "num_channels": 2}
SQUARE = {**SIZES, **MLP, "image_size": 12, "patch_size": 4, "num_channels": 2}

IMAGES: dict[str, dict[str, Any]] = {
    "vit": VIT,
    "deit": VIT,
    # Square: transformers swaps rows and columns in the table of other images.
    "beit": {
        **SQUARE,
        "vocab_size": 19,
        "use_relative_position_bias": True,
        "use_mask_token": True,
    },
    # Square: transformers resizes the positions of other images as if they were square.
    "dinov2": {**SIZES, "image_size": 12, "patch_size": 4, "num_channels": 2, "mlp_ratio": 2},
    "dinov3_vit": VIT | {"num_register_tokens": 3, "use_gated_mlp": True, "layer_norm_eps": 1e-3},
    "vit_mae": SQUARE
    | {
        "mask_ratio": 0.6,
        "norm_pix_loss": True,
        "decoder_hidden_size": 32,
        "decoder_num_hidden_layers": 2,
        "decoder_num_attention_heads": 4,
        "decoder_intermediate_size": 28,
    },
}
"""`model_type` -> fields of its configuration in transformers."""

# In transformers these classes only reconstruct square images.
_RECONSTRUCTED = SQUARE | {"encoder_stride": 4}
TINY_CLASSES: dict[str, dict[str, Any]] = {
    "ViTForMaskedImageModeling": _RECONSTRUCTED,
    "DeiTForMaskedImageModeling": _RECONSTRUCTED,
    "BeitForMaskedImageModeling": {
        "use_relative_position_bias": False,
        "use_shared_relative_position_bias": True,
        "use_absolute_position_embeddings": True,
        "layer_scale_init_value": 0.0,
    },
}
"""Class -> fields in which its model differs from the others of its system."""
