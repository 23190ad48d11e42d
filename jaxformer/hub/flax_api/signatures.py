"""The arguments of the Flax classes in transformers 4.55, in order."""

from inspect import Parameter, Signature

_OPTIONS = "output_attentions output_hidden_states return_dict"
_END = f"params dropout_rng train {_OPTIONS}"
_SEQ2SEQ_END = f"{_OPTIONS} train params dropout_rng"
_TEXT = "input_ids attention_mask"
_BERT = (
    f"{_TEXT} token_type_ids position_ids head_mask encoder_hidden_states encoder_attention_mask"
)
_DECODER = f"{_TEXT} position_ids params past_key_values dropout_rng train {_OPTIONS}"
_WITH_ENCODER = (
    f"{_TEXT} position_ids encoder_hidden_states encoder_attention_mask {_OPTIONS} train params "
    "past_key_values dropout_rng"
)
_IMAGE = f"pixel_values {_END}"
_BOTH = f"{_TEXT} decoder_input_ids decoder_attention_mask"
_BART = f"{_BOTH} position_ids decoder_position_ids {_SEQ2SEQ_END}"
_T5 = ("longt5", "mt5", "t5")
_FREEZES = f"{_OPTIONS} train freeze_feature_encoder params dropout_rng"
_WAV2VEC2_END = "output_attentions output_hidden_states freeze_feature_encoder return_dict"
_CALLS = {
    "albert": f"{_TEXT} token_type_ids position_ids {_END}",
    "beit": f"pixel_values bool_masked_pos {_END}",
    "big_bird": f"{_BERT} params dropout_rng indices_rng train {_OPTIONS} past_key_values",
    "bloom": f"{_TEXT} past_key_values {_END}",
    "clip": f"input_ids pixel_values attention_mask position_ids {_END}",
    "CLIPTextModel": f"{_TEXT} position_ids {_END}",
    "CLIPTextModelWithProjection": f"{_TEXT} position_ids {_END}",
    "CLIPVisionModel": _IMAGE,
    "dinov2": _IMAGE,
    "distilbert": f"{_TEXT} head_mask {_END}",
    "gpt2": (
        f"{_TEXT} position_ids encoder_hidden_states encoder_attention_mask params past_key_values "
        f"dropout_rng train {_OPTIONS}"
    ),
    "roformer": f"{_TEXT} token_type_ids head_mask {_END}",
    "opt": f"{_TEXT} position_ids params past_key_values {_OPTIONS} dropout_rng deterministic",
    "speech-encoder-decoder": (
        "inputs attention_mask decoder_input_ids decoder_attention_mask decoder_position_ids "
        f"{_FREEZES}"
    ),
    "vision-encoder-decoder": (
        f"pixel_values decoder_input_ids decoder_attention_mask decoder_position_ids {_SEQ2SEQ_END}"
    ),
    "vision-text-dual-encoder": (
        f"input_ids pixel_values attention_mask position_ids token_type_ids {_END}"
    ),
    "vit": _IMAGE,
    "wav2vec2": (
        f"input_values attention_mask mask_time_indices params dropout_rng train {_WAV2VEC2_END}"
    ),
    "whisper": (
        "input_features decoder_input_ids attention_mask decoder_attention_mask position_ids "
        f"decoder_position_ids {_SEQ2SEQ_END}"
    ),
    "xglm": _WITH_ENCODER,
    "BartForCausalLM": _WITH_ENCODER,
    "BigBirdForQuestionAnswering": (
        f"{_TEXT} token_type_ids position_ids head_mask question_lengths params dropout_rng "
        f"indices_rng train {_OPTIONS}"
    ),
    "Wav2Vec2ForPreTraining": (
        "input_values attention_mask mask_time_indices gumbel_temperature params dropout_rng "
        f"gumbel_rng train {_WAV2VEC2_END}"
    ),
    "WhisperForAudioClassification": f"input_features attention_mask {_SEQ2SEQ_END}",
    **dict.fromkeys(
        ("bert", "electra", "roberta", "roberta-prelayernorm", "xlm-roberta"),
        f"{_BERT} {_END} past_key_values",
    ),
    **dict.fromkeys(("gemma", "gpt_neo", "gptj", "llama", "mistral"), _DECODER),
    **dict.fromkeys(_T5, f"{_BOTH} {_SEQ2SEQ_END}"),
    **dict.fromkeys(("MT5EncoderModel", "T5EncoderModel"), f"{_TEXT} {_SEQ2SEQ_END}"),
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "encoder-decoder", "marian", "mbart", "pegasus"),
        _BART,
    ),
}
"""`model_type`, or class without "Flax" -> the arguments of a call."""
_ENCODE = {
    **dict.fromkeys(_T5, f"{_TEXT} {_SEQ2SEQ_END}"),
    "speech-encoder-decoder": f"inputs attention_mask {_FREEZES}",
    "vision-encoder-decoder": f"pixel_values {_SEQ2SEQ_END}",
    "whisper": f"input_features attention_mask {_SEQ2SEQ_END}",
}
"""`model_type` -> the arguments of `encode`, if they differ from BART's."""


_DEFAULTS = {"train": False, "deterministic": True, "freeze_feature_encoder": False}
_REQUIRED = (
    "decoder_input_ids encoder_outputs",
    "input_features decoder_input_ids",
    "input_ids pixel_values",
)
"""The first two arguments of methods that require both."""


def signatures_of(kind: str, name: str) -> dict[str, Signature]:
    """Returns the methods of `FlaxNAME` that run the model, with their signatures.

    The result is empty if classes of this `model_type` are not supported.
    """
    words = _CALLS.get(name, _CALLS.get(kind, ""))
    found = {"__call__": words} if words else {}
    if "decoder_input_ids" in words:
        mask = "" if kind == "vision-encoder-decoder" else "encoder_attention_mask "
        positions = "" if kind in _T5 else "decoder_position_ids "
        found["encode"] = _ENCODE.get(kind, f"{_TEXT} position_ids {_SEQ2SEQ_END}")
        found["decode"] = (
            f"decoder_input_ids encoder_outputs {mask}decoder_attention_mask {positions}"
            f"past_key_values {_SEQ2SEQ_END}"
        )
    elif name.endswith("EncoderModel"):
        found["encode"] = words
    elif words.startswith("input_ids pixel_values"):
        texts = "input_ids attention_mask position_ids token_type_ids"
        found["get_text_features"] = f"{texts} params dropout_rng train"
        found["get_image_features"] = "pixel_values params dropout_rng train"
    return {method: _signature(names) for method, names in found.items()}


def _signature(words: str) -> Signature:
    kind, required = Parameter.POSITIONAL_OR_KEYWORD, 2 if words.startswith(_REQUIRED) else 1
    names = words.split()
    own = [Parameter(name, kind) for name in ("self", *names[:required])]
    own += [Parameter(name, kind, default=_DEFAULTS.get(name)) for name in names[required:]]
    return Signature(own)
