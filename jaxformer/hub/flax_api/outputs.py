"""The outputs of the Flax classes in transformers 4.55, with access by attribute, key or index."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax

_LAYERS = "hidden_states attentions"
_CROSS = "past_key_values hidden_states attentions cross_attentions"
_SEQ2SEQ = (
    "past_key_values decoder_hidden_states decoder_attentions cross_attentions "
    "encoder_last_hidden_state encoder_hidden_states encoder_attentions"
)
_FIELDS = {
    "BaseModelOutput": f"last_hidden_state {_LAYERS}",
    "BaseModelOutputWithPast": f"last_hidden_state past_key_values {_LAYERS}",
    "BaseModelOutputWithPooling": f"last_hidden_state pooler_output {_LAYERS}",
    "BaseModelOutputWithPastAndCrossAttentions": f"last_hidden_state {_CROSS}",
    "BaseModelOutputWithPoolingAndCrossAttentions": (
        "last_hidden_state pooler_output hidden_states past_key_values attentions cross_attentions"
    ),
    "CausalLMOutputWithCrossAttentions": f"logits {_CROSS}",
    "MaskedLMOutput": f"logits {_LAYERS}",
    "MultipleChoiceModelOutput": f"logits {_LAYERS}",
    "NextSentencePredictorOutput": f"logits {_LAYERS}",
    "SequenceClassifierOutput": f"logits {_LAYERS}",
    "TokenClassifierOutput": f"logits {_LAYERS}",
    "QuestionAnsweringModelOutput": f"start_logits end_logits {_LAYERS}",
    "Seq2SeqModelOutput": f"last_hidden_state {_SEQ2SEQ}",
    "Seq2SeqLMOutput": f"logits {_SEQ2SEQ}",
    "Seq2SeqSequenceClassifierOutput": f"logits {_SEQ2SEQ}",
    "Seq2SeqQuestionAnsweringModelOutput": f"start_logits end_logits {_SEQ2SEQ}",
    "AlbertForPreTrainingOutput": f"prediction_logits sop_logits {_LAYERS}",
    "BertForPreTrainingOutput": f"prediction_logits seq_relationship_logits {_LAYERS}",
    "BigBirdForPreTrainingOutput": f"prediction_logits seq_relationship_logits {_LAYERS}",
    "ElectraForPreTrainingOutput": f"logits {_LAYERS}",
    "Wav2Vec2BaseModelOutput": f"last_hidden_state extract_features {_LAYERS}",
    "Wav2Vec2ForPreTrainingOutput": (
        f"projected_states projected_quantized_states codevector_perplexity {_LAYERS}"
    ),
    "CLIPTextModelOutput": f"text_embeds last_hidden_state {_LAYERS}",
    "CLIPOutput": (
        "logits_per_image logits_per_text text_embeds image_embeds text_model_output "
        "vision_model_output"
    ),
    "GreedySearchOutput": "sequences",
    "SampleOutput": "sequences",
    "BeamSearchOutput": "sequences scores",
}
"""Output class without "Flax" -> its fields."""
_OUTPUTS = {
    "MaskedLM": "MaskedLMOutput",
    "MaskedImageModeling": "MaskedLMOutput",
    "CausalLM": "CausalLMOutputWithCrossAttentions",
    "LMHeadModel": "CausalLMOutputWithCrossAttentions",
    "ForConditionalGeneration": "Seq2SeqLMOutput",
    "MTModel": "Seq2SeqLMOutput",
    "EncoderDecoderModel": "Seq2SeqLMOutput",
    "NextSentencePrediction": "NextSentencePredictorOutput",
    "MultipleChoice": "MultipleChoiceModelOutput",
    "TokenClassification": "TokenClassifierOutput",
    "ImageClassification": "SequenceClassifierOutput",
    "SequenceClassification": "SequenceClassifierOutput",
    "QuestionAnswering": "QuestionAnsweringModelOutput",
    "CLIPModel": "CLIPOutput",
    "CLIPTextModel": "BaseModelOutputWithPooling",
    "DualEncoderModel": "CLIPOutput",
    "AudioClassification": "SequenceClassifierOutput",
    "ForCTC": "MaskedLMOutput",
    "Wav2Vec2Model": "Wav2Vec2BaseModelOutput",
    "WithProjection": "CLIPTextModelOutput",
}
"""Suffix of a class name -> its output class."""


class FlaxOutput(dict):
    """An output of a Flax class: a pytree of the fields that are not None, in order."""

    fields: ClassVar[tuple[str, ...]] = ()
    """The names of the class's fields."""

    def __init__(self, *values: Any, **named: Any):
        """Takes the fields in order or by name, and leaves out None."""
        given = dict(zip(self.fields, values, strict=False)) | named
        if unknown := given.keys() - set(self.fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        super().__init__({n: given[n] for n in self.fields if given.get(n) is not None})

    def __getattr__(self, name: str) -> Any:
        if name in self.fields:
            return self.get(name)
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the fields that are not None as a tuple, recursively."""
        values = (self[name] for name in self.fields if name in self)
        return tuple(x.to_tuple() if isinstance(x, FlaxOutput) else x for x in values)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with some fields replaced."""
        return type(self)(**{**self, **changes})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Returns the outputs of a model that are fields; "PART.field" is a field of a part."""
        outputs, parts = {}, {}
        for name, value in found.items():
            part, _, own = name.rpartition(".")
            stacked = own.endswith(("hidden_states", "attentions"))
            owner = parts.setdefault(part, {}) if part else outputs
            owner[own] = tuple(value) if stacked else value
        pooled = OUTPUTS["FlaxBaseModelOutputWithPooling"]
        outputs |= {name: pooled.of(values) for name, values in parts.items()}
        return cls(**{name: outputs[name] for name in cls.fields if name in outputs})


def _output_class(name: str, fields: str) -> type[FlaxOutput]:
    text = f"The fields {', '.join(fields.split())}."
    made = type(name, (FlaxOutput,), {"fields": tuple(fields.split()), "__doc__": text})

    def flatten(output: FlaxOutput) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(n for n in output.fields if n in output)
        return [(jax.tree_util.DictKey(n), output[n]) for n in names], names

    jax.tree_util.register_pytree_with_keys(
        made, flatten, lambda names, values: made(**dict(zip(names, values, strict=True)))
    )
    return made


OUTPUTS: Mapping[str, type[FlaxOutput]] = {
    f"Flax{name}": _output_class(f"Flax{name}", fields) for name, fields in _FIELDS.items()
}
"""The output classes by name."""


def output_of(method: str, name: str, seq2seq: bool, causal: bool) -> type[FlaxOutput]:
    """Returns the output class of "__call__", "encode" or "decode" of `FlaxNAME`."""
    return OUTPUTS[f"Flax{_output_name(method, name, seq2seq, causal)}"]


def _output_name(method: str, name: str, seq2seq: bool, causal: bool) -> str:
    if method == "encode":
        return "BaseModelOutput"
    if name.endswith("ForPreTraining"):
        return f"{name}Output"
    made = next((made for ending, made in _OUTPUTS.items() if name.endswith(ending)), None)
    cross = "BaseModelOutputWithPastAndCrossAttentions"
    if method == "decode":
        return "CausalLMOutputWithCrossAttentions" if made == "Seq2SeqLMOutput" else cross
    if made is not None:
        both = f"Seq2Seq{made}"
        return both if seq2seq and both in _FIELDS else made
    if seq2seq:
        return "Seq2SeqModelOutput"
    return cross if causal else "BaseModelOutputWithPoolingAndCrossAttentions"
