"""The Flax classes of transformers 4.55, the last release with Flax support."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

if TYPE_CHECKING:
    from jaxformer.hub.model_format import Architecture, Formats, ModelFormat

_NAMES = {
    "albert": (
        "AlbertModel AlbertForPreTraining AlbertForMaskedLM AlbertForSequenceClassification "
        "AlbertForMultipleChoice AlbertForTokenClassification AlbertForQuestionAnswering"
    ),
    "bart": (
        "BartForCausalLM BartForConditionalGeneration BartForQuestionAnswering "
        "BartForSequenceClassification BartModel"
    ),
    "beit": "BeitForImageClassification BeitForMaskedImageModeling BeitModel",
    "bert": (
        "BertForCausalLM BertForMaskedLM BertForMultipleChoice BertForNextSentencePrediction "
        "BertForPreTraining BertForQuestionAnswering BertForSequenceClassification "
        "BertForTokenClassification BertModel"
    ),
    "big_bird": (
        "BigBirdForCausalLM BigBirdForMaskedLM BigBirdForMultipleChoice BigBirdForPreTraining "
        "BigBirdForQuestionAnswering BigBirdForSequenceClassification "
        "BigBirdForTokenClassification BigBirdModel"
    ),
    "blenderbot": "BlenderbotForConditionalGeneration BlenderbotModel",
    "blenderbot-small": "BlenderbotSmallForConditionalGeneration BlenderbotSmallModel",
    "bloom": "BloomForCausalLM BloomModel",
    "clip": "CLIPModel CLIPTextModel CLIPTextModelWithProjection CLIPVisionModel",
    "dinov2": "Dinov2ForImageClassification Dinov2Model",
    "distilbert": (
        "DistilBertForMaskedLM DistilBertForMultipleChoice DistilBertForQuestionAnswering "
        "DistilBertForSequenceClassification DistilBertForTokenClassification DistilBertModel"
    ),
    "electra": (
        "ElectraForCausalLM ElectraForMaskedLM ElectraForMultipleChoice ElectraForPreTraining "
        "ElectraForQuestionAnswering ElectraForSequenceClassification "
        "ElectraForTokenClassification ElectraModel"
    ),
    "encoder-decoder": "EncoderDecoderModel",
    "gemma": "GemmaForCausalLM GemmaModel",
    "gpt2": "GPT2LMHeadModel GPT2Model",
    "gpt_neo": "GPTNeoForCausalLM GPTNeoModel",
    "gptj": "GPTJForCausalLM GPTJModel",
    "llama": "LlamaForCausalLM LlamaModel",
    "longt5": "LongT5ForConditionalGeneration LongT5Model",
    "marian": "MarianModel MarianMTModel",
    "mbart": (
        "MBartForConditionalGeneration MBartForQuestionAnswering MBartForSequenceClassification "
        "MBartModel"
    ),
    "mistral": "MistralForCausalLM MistralModel",
    "mt5": "MT5EncoderModel MT5ForConditionalGeneration MT5Model",
    "opt": "OPTForCausalLM OPTModel",
    "pegasus": "PegasusForConditionalGeneration PegasusModel",
    "regnet": "RegNetForImageClassification RegNetModel",
    "resnet": "ResNetForImageClassification ResNetModel",
    "roberta": (
        "RobertaForCausalLM RobertaForMaskedLM RobertaForMultipleChoice "
        "RobertaForQuestionAnswering RobertaForSequenceClassification "
        "RobertaForTokenClassification RobertaModel"
    ),
    "roberta-prelayernorm": (
        "RobertaPreLayerNormForCausalLM RobertaPreLayerNormForMaskedLM "
        "RobertaPreLayerNormForMultipleChoice RobertaPreLayerNormForQuestionAnswering "
        "RobertaPreLayerNormForSequenceClassification RobertaPreLayerNormForTokenClassification "
        "RobertaPreLayerNormModel"
    ),
    "roformer": (
        "RoFormerForMaskedLM RoFormerForMultipleChoice RoFormerForQuestionAnswering "
        "RoFormerForSequenceClassification RoFormerForTokenClassification RoFormerModel"
    ),
    "speech-encoder-decoder": "SpeechEncoderDecoderModel",
    "t5": "T5EncoderModel T5ForConditionalGeneration T5Model",
    "vision-encoder-decoder": "VisionEncoderDecoderModel",
    "vision-text-dual-encoder": "VisionTextDualEncoderModel",
    "vit": "ViTForImageClassification ViTModel",
    "wav2vec2": "Wav2Vec2ForCTC Wav2Vec2ForPreTraining Wav2Vec2Model",
    "whisper": "WhisperForConditionalGeneration WhisperModel WhisperForAudioClassification",
    "xglm": "XGLMForCausalLM XGLMModel",
    "xlm-roberta": (
        "XLMRobertaForMaskedLM XLMRobertaForCausalLM XLMRobertaForMultipleChoice "
        "XLMRobertaForQuestionAnswering XLMRobertaForSequenceClassification "
        "XLMRobertaForTokenClassification XLMRobertaModel"
    ),
}
FLAX_CLASSES: dict[str, tuple[str, ...]] = {
    model_type: tuple(names.split()) for model_type, names in _NAMES.items()
}
"""`model_type` -> the names of its classes without "Flax" in front; "Auto" classes are left out."""


def flax_architecture(
    formats: "Formats", kind: str, name: str
) -> "tuple[ModelFormat, Architecture] | None":
    """Returns the system and the class of `FlaxNAME`; a tower may be a separate system (CLIP)."""
    own = [formats[kind]] if kind in formats else []
    for model_format in [*own, *formats.values()]:
        if (architecture := model_format.architecture(name)) is not None:
            return model_format, architecture
    return None


_SEQ2SEQ = ("ForConditionalGeneration", "MTModel")
REPEATS_INPUTS = frozenset({"blenderbot", "blenderbot-small", "marian", "pegasus"})
"""The systems whose Flax decoders, unlike PyTorch's, read the inputs of the encoder, shifted, where
no `decoder_input_ids` are given."""
Arrays = Mapping[str, jax.Array]


def _second_segment(arrays: Arrays) -> Arrays:
    """Segment 1, the second, for all tokens."""
    return {"token_type_ids": jnp.ones_like(arrays["input_ids"])} if "input_ids" in arrays else {}


def _counted(arrays: Arrays) -> Arrays:
    """Positions that count the real tokens of the decoder."""
    if (mask := arrays.get("decoder_attention_mask")) is None:
        return {}
    return {"decoder_position_ids": jnp.maximum(jnp.cumsum(mask, axis=-1) * mask - 1, 0)}


FLAX_INPUTS: dict[str, Callable[[Arrays], Arrays]] = {
    "electra": _second_segment,
    "whisper": _counted,
}
"""`model_type` -> the inputs that its Flax classes, unlike PyTorch's, make from others where they
are not given."""
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
"""`FlaxAutoModelTASK` -> the ends of the names of the classes that it chooses from."""


def flax_auto_classes(task: str) -> dict[str, str]:
    """Returns what `FlaxAutoModelTASK` chooses for each `model_type`, without "Flax" in front."""
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
