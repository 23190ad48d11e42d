"""The Flax classes of transformers 4.55, the last release with Flax support."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxformer.hub.model_format import Architecture, Formats, ModelFormat

_LABELS = "ForQuestionAnswering ForSequenceClassification ForTokenClassification Model"
_ENCODER = f"ForMaskedLM ForMultipleChoice {_LABELS}"
_NAMES = {
    "albert": (
        "Albert: Model ForPreTraining ForMaskedLM ForSequenceClassification ForMultipleChoice "
        "ForTokenClassification ForQuestionAnswering"
    ),
    "bart": (
        "Bart: ForCausalLM ForConditionalGeneration ForQuestionAnswering "
        "ForSequenceClassification Model"
    ),
    "beit": "Beit: ForImageClassification ForMaskedImageModeling Model",
    "bert": (
        "Bert: ForCausalLM ForMaskedLM ForMultipleChoice ForNextSentencePrediction "
        f"ForPreTraining {_LABELS}"
    ),
    "big_bird": f"BigBird: ForCausalLM ForMaskedLM ForMultipleChoice ForPreTraining {_LABELS}",
    "blenderbot": "Blenderbot: ForConditionalGeneration Model",
    "blenderbot-small": "BlenderbotSmall: ForConditionalGeneration Model",
    "bloom": "Bloom: ForCausalLM Model",
    "clip": "CLIP: Model TextModel TextModelWithProjection VisionModel",
    "dinov2": "Dinov2: ForImageClassification Model",
    "distilbert": f"DistilBert: {_ENCODER}",
    "electra": f"Electra: ForCausalLM ForMaskedLM ForMultipleChoice ForPreTraining {_LABELS}",
    "encoder-decoder": "EncoderDecoder: Model",
    "gemma": "Gemma: ForCausalLM Model",
    "gpt2": "GPT2: LMHeadModel Model",
    "gpt_neo": "GPTNeo: ForCausalLM Model",
    "gptj": "GPTJ: ForCausalLM Model",
    "llama": "Llama: ForCausalLM Model",
    "longt5": "LongT5: ForConditionalGeneration Model",
    "marian": "Marian: Model MTModel",
    "mbart": (
        "MBart: ForConditionalGeneration ForQuestionAnswering ForSequenceClassification Model"
    ),
    "mistral": "Mistral: ForCausalLM Model",
    "mt5": "MT5: EncoderModel ForConditionalGeneration Model",
    "opt": "OPT: ForCausalLM Model",
    "pegasus": "Pegasus: ForConditionalGeneration Model",
    "regnet": "RegNet: ForImageClassification Model",
    "resnet": "ResNet: ForImageClassification Model",
    "roberta": f"Roberta: ForCausalLM {_ENCODER}",
    "roberta-prelayernorm": f"RobertaPreLayerNorm: ForCausalLM {_ENCODER}",
    "roformer": f"RoFormer: {_ENCODER}",
    "speech-encoder-decoder": "SpeechEncoderDecoder: Model",
    "t5": "T5: EncoderModel ForConditionalGeneration Model",
    "vision-encoder-decoder": "VisionEncoderDecoder: Model",
    "vision-text-dual-encoder": "VisionTextDualEncoder: Model",
    "vit": "ViT: ForImageClassification Model",
    "wav2vec2": "Wav2Vec2: ForCTC ForPreTraining Model",
    "whisper": "Whisper: ForConditionalGeneration Model ForAudioClassification",
    "xglm": "XGLM: ForCausalLM Model",
    "xlm-roberta": f"XLMRoberta: ForMaskedLM ForCausalLM ForMultipleChoice {_LABELS}",
}
"""`model_type` -> the prefix of its class names, and the suffix of each class."""


def _names(words: str) -> tuple[str, ...]:
    start, _, ends = words.partition(": ")
    return tuple(f"{start}{end}" for end in ends.split())


FLAX_CLASSES: dict[str, tuple[str, ...]] = {
    model_type: _names(words) for model_type, words in _NAMES.items()
}
"""`model_type` -> the names of its classes without "Flax", except for "Auto" classes."""


def flax_architecture(
    formats: "Formats", kind: str, name: str
) -> "tuple[ModelFormat, Architecture] | None":
    """Returns the system and class of `FlaxNAME`; a tower may be a separate system (CLIP)."""
    own = [formats[kind]] if kind in formats else []
    for model_format in [*own, *formats.values()]:
        if (architecture := model_format.architecture(name)) is not None:
            return model_format, architecture
    return None


_SEQ2SEQ = ("ForConditionalGeneration", "MTModel")
REPEATS_INPUTS = frozenset({"blenderbot", "blenderbot-small", "marian", "pegasus"})
"""Systems whose Flax decoders, unlike PyTorch's, by default read the encoder's shifted inputs."""
Arrays = Mapping[str, jax.Array]


def _second_segment(arrays: Arrays) -> Arrays:
    """Returns segment 1, the second, for all tokens."""
    return {"token_type_ids": jnp.ones_like(arrays["input_ids"])} if "input_ids" in arrays else {}


def _counted(arrays: Arrays) -> Arrays:
    """Returns positions that count the real tokens of the decoder."""
    if (mask := arrays.get("decoder_attention_mask")) is None:
        return {}
    return {"decoder_position_ids": jnp.maximum(jnp.cumsum(mask, axis=-1) * mask - 1, 0)}


FLAX_INPUTS: dict[str, Callable[[Arrays], Arrays]] = {
    "electra": _second_segment,
    "whisper": _counted,
}
"""`model_type` -> inputs that its Flax classes, unlike PyTorch's, derive from others if missing."""
FLAX_AUTO_ENDINGS: dict[str, tuple[str, ...]] = {
    "ForPreTraining": ("ForPreTraining", "ForMaskedLM", "ForConditionalGeneration"),
    "ForMaskedLM": ("ForMaskedLM",),
    "ForCausalLM": ("ForCausalLM", "LMHeadModel"),
    "ForSeq2SeqLM": (*_SEQ2SEQ, "EncoderDecoderModel"),
    "ForSequenceClassification": ("ForSequenceClassification",),
    "ForTokenClassification": ("ForTokenClassification",),
    "ForQuestionAnswering": ("ForQuestionAnswering",),
    "ForMultipleChoice": ("ForMultipleChoice",),
    "ForNextSentencePrediction": ("ForNextSentencePrediction",),
    "ForImageClassification": ("ForImageClassification",),
    "ForSpeechSeq2Seq": ("SpeechEncoderDecoderModel", "WhisperForConditionalGeneration"),
    "ForVision2Seq": ("VisionEncoderDecoderModel",),
}
"""`FlaxAutoModelTASK` -> the suffixes of the class names that it chooses from."""


def flax_auto_classes(task: str) -> dict[str, str]:
    """Returns the class, without "Flax", that `FlaxAutoModelTASK` chooses for each `model_type`."""
    found = {}
    for kind, names in FLAX_CLASSES.items():
        endings = FLAX_AUTO_ENDINGS.get(task, ("Model",))
        if task == "ForMaskedLM" and kind in ("bart", "mbart"):
            endings = _SEQ2SEQ
        fit = [name for ending in endings for name in names if name.endswith(ending)]
        if task == "":
            fit = sorted((name for name in fit if "EncoderDecoder" not in name), key=len)
        if fit:
            found[kind] = fit[0]
    return found
