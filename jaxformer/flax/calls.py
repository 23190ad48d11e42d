"""The arguments of the methods of the Flax classes, in their old order."""

import inspect
from collections.abc import Callable
from typing import Any

_OPTIONS = "output_attentions output_hidden_states return_dict"
_END = f"params dropout_rng train {_OPTIONS}"
_TEXT = "input_ids attention_mask"
_SEQ2SEQ_END = f"{_OPTIONS} train params dropout_rng"
_BERT = (
    f"{_TEXT} token_type_ids position_ids head_mask encoder_hidden_states encoder_attention_mask "
)
_DECODER = f"{_TEXT} position_ids params past_key_values dropout_rng train {_OPTIONS}"
_OF_BERT = f"{_BERT}{_END} past_key_values"
_WITH_ENCODER = (
    f"{_TEXT} position_ids encoder_hidden_states encoder_attention_mask {_OPTIONS} train params "
    "past_key_values dropout_rng"
)
_IMAGE = f"pixel_values {_END}"
_BOTH = f"{_TEXT} decoder_input_ids decoder_attention_mask"
_BART = f"{_BOTH} position_ids decoder_position_ids {_SEQ2SEQ_END}"
_T5 = f"{_BOTH} {_SEQ2SEQ_END}"
_CALLS = {
    "albert": f"{_TEXT} token_type_ids position_ids {_END}",
    "beit": f"pixel_values bool_masked_pos {_END}",
    "big_bird": (f"{_BERT}params dropout_rng indices_rng train {_OPTIONS} past_key_values"),
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
    "vision-encoder-decoder": (
        f"pixel_values decoder_input_ids decoder_attention_mask decoder_position_ids {_SEQ2SEQ_END}"
    ),
    "vision-text-dual-encoder": (
        f"input_ids pixel_values attention_mask position_ids token_type_ids {_END}"
    ),
    "vit": _IMAGE,
    "xglm": _WITH_ENCODER,
    "BartForCausalLM": _WITH_ENCODER,
    "BigBirdForQuestionAnswering": (
        f"{_TEXT} token_type_ids position_ids head_mask question_lengths params dropout_rng "
        f"indices_rng train {_OPTIONS}"
    ),
    **dict.fromkeys(
        ("bert", "electra", "roberta", "roberta-prelayernorm", "xlm-roberta"), _OF_BERT
    ),
    **dict.fromkeys(("gemma", "gpt_neo", "gptj", "llama", "mistral"), _DECODER),
    **dict.fromkeys(("longt5", "mt5", "t5"), _T5),
    **dict.fromkeys(("MT5EncoderModel", "T5EncoderModel"), f"{_TEXT} {_SEQ2SEQ_END}"),
    **dict.fromkeys(
        ("bart", "blenderbot", "blenderbot-small", "encoder-decoder", "marian", "mbart", "pegasus"),
        _BART,
    ),
}
"""`model_type`, or class without "Flax" -> the arguments of a call."""
_ENCODE = {
    **dict.fromkeys(("longt5", "mt5", "t5"), f"{_TEXT} {_SEQ2SEQ_END}"),
    "vision-encoder-decoder": f"pixel_values {_SEQ2SEQ_END}",
}
SEQ2SEQ = (
    *("bart", "blenderbot", "blenderbot-small", "encoder-decoder", "longt5", "marian", "mbart"),
    *("mt5", "pegasus", "t5", "vision-encoder-decoder"),
)
"""The types of encoder-decoders."""
_REQUIRED = {"clip": 2, "vision-text-dual-encoder": 2}
_DEFAULTS = {"train": False, "deterministic": True}


def has_call(kind: str) -> bool:
    """Whether classes of this `model_type` are supported."""
    return kind in _CALLS


def names_of_call(kind: str, name: str) -> tuple[str, ...]:
    """Returns the arguments of a call of `FlaxNAME`."""
    return tuple(_CALLS.get(name, _CALLS[kind]).split())


def call_of(kind: str, name: str) -> Callable[..., Any]:
    """Returns the method `__call__` of `FlaxNAME`, which passes its arguments to `_forward`."""
    count = _REQUIRED.get(kind, 1) if name not in _CALLS else 1
    return _method("_forward", names_of_call(kind, name), count, "Runs the model.")


def encode_of(kind: str) -> Callable[..., Any]:
    """Returns the method `encode`, which passes its arguments to `_encode`."""
    words = _ENCODE.get(kind, f"{_TEXT} position_ids {_SEQ2SEQ_END}")
    return _method("_encode", words.split(), 1, "Runs the encoder.")


def decode_of(kind: str) -> Callable[..., Any]:
    """Returns the method `decode`, which passes its arguments to `_decode`."""
    of_images = kind == "vision-encoder-decoder"
    mask = "" if of_images else "encoder_attention_mask "
    positions = "" if kind in ("longt5", "mt5", "t5") else "decoder_position_ids "
    words = (
        f"decoder_input_ids encoder_outputs {mask}decoder_attention_mask {positions}"
        f"past_key_values {_SEQ2SEQ_END}"
    )
    return _method("_decode", words.split(), 2, "Runs the decoder on the encoder's outputs.")


def features_of() -> dict[str, Callable[..., Any]]:
    """Returns the methods of a dual encoder that give the vectors of texts, or of images."""
    arrays = {
        "text": "input_ids attention_mask position_ids token_type_ids",
        "image": "pixel_values",
    }
    return {
        f"get_{name}_features": _method(
            f"_{name}_features", f"{words} params dropout_rng train".split(), 1, "Returns vectors."
        )
        for name, words in arrays.items()
    }


def _method(inner: str, names: Any, required: int, text: str) -> Callable[..., Any]:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    own = [inspect.Parameter("self", kind)]
    for number, name in enumerate(names):
        default = inspect.Parameter.empty if number < required else _DEFAULTS.get(name)
        own.append(inspect.Parameter(name, kind, default=default))
    signature = inspect.Signature(own)

    def method(self, *arguments, **named):
        bound = signature.bind(self, *arguments, **named).arguments
        given = {name: value for name, value in bound.items() if value is not None}
        del given["self"]
        return getattr(self, inner)(given)

    method.__signature__ = signature
    method.__doc__ = f"{text} Arguments: {', '.join(names)}."
    return method
