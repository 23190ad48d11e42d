"""Configurations of small speech models with odd sizes, see `parity.tiny`."""

from typing import Any

from jaxformer.parity.tiny_images import MLP, SIDES, SIZES

_WAVEFORM = {
    **SIZES,
    **MLP,
    "vocab_size": 23,
    "conv_dim": [20, 16, 24],
    "conv_kernel": [5, 3, 2],
    "conv_stride": [3, 2, 1],
    "num_conv_pos_embeddings": 6,
    "num_conv_pos_embedding_groups": 4,
    "classifier_proj_size": 28,
    "pad_token_id": 3,
}

SOUNDS: dict[str, dict[str, Any]] = {
    "wav2vec2": _WAVEFORM
    | {
        "feat_extract_norm": "layer",
        "conv_bias": True,
        "do_stable_layer_norm": True,
        "use_weighted_layer_sum": True,
        "num_codevectors_per_group": 6,
        "codevector_dim": 20,
        "proj_codevector_dim": 18,
    },
    "hubert": _WAVEFORM | {"feat_extract_activation": "relu", "hidden_act": "silu"},
    "audio-spectrogram-transformer": {
        **SIZES,
        **MLP,
        "max_length": 14,
        "num_mel_bins": 9,
        "patch_size": 4,
        "frequency_stride": 2,
        "time_stride": 3,
    },
    "whisper": {
        **SIDES,
        "num_mel_bins": 20,
        "max_source_positions": 30,
        "max_target_positions": 40,
        "use_weighted_layer_sum": True,
        "classifier_proj_size": 28,
        "pad_token_id": 90,
        "bos_token_id": 90,
        "eos_token_id": 90,
        "decoder_start_token_id": 91,
    },
}
"""`model_type` -> fields of its configuration in transformers."""
