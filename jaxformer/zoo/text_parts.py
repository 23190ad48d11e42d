"""Models of texts and images; only the text model is read, as a separate system.

For texts without images, they compute the same as their text model. An export has the text model,
under the names of that system.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.hub.hf_config import HFConfig
from jaxformer.hub.model_format import Formats, ModelFormat, section
from jaxformer.io.notices import warn_once
from jaxformer.zoo.common.basics import their_sizes

# The text model is `model.language_model` in transformers 5, and was `language_model.model` and,
# in Qwen's files, `model` itself.
_NAMES = {
    r"^(model\.)?language_model\.lm_head\.": "lm_head.",
    r"^(model\.)?language_model\.(model\.)?": "model.",
}
_IMAGE_TENSORS = ("visual.*", "vision_tower.*", "multi_modal_projector.*")
_TOP_LEVEL_FIELDS = (
    "bos_token_id", "dtype", "eos_token_id", "id2label", "label2id", "quantization",
    "quantization_config", "torch_dtype", "transformers_version",
)  # fmt: skip


def _renamed_rope(values: dict[str, Any]) -> dict[str, Any]:
    """Removes the RoPE sections of time, height and width, whose positions are equal in texts."""
    changed = {}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := values.get(name), dict):
            own = {k: v for k, v in rope.items() if not k.startswith("mrope_")}
            kinds = {k: "default" for k in ("type", "rope_type") if own.get(k) == "mrope"}
            changed[name] = own | kinds
    return values | changed


@dataclass(frozen=True)
class TextPart:
    """Where the text model is in the files of a larger one."""

    kind: str
    """The `model_type` of the full model."""
    model_type: str
    """The `model_type` of the system that equals its text model."""
    section_type: str
    """The `model_type` of the section of config.json."""
    classes: Mapping[str, str]
    """Classes of the full model -> the classes of that system."""
    alone: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The class of the text model if it is saved separately -> the class of the system."""
    tied: bool
    """Whether tables are tied by default."""
    flat: bool = False
    """Whether old files have the fields of the text model at the top level."""
    tied_within: bool = False
    """Whether the section may say that tables are tied even if the top level does not."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of missing fields that differ from those of the system."""
    foreign: tuple[str, ...] = ()
    """Fields of the system that the text model lacks; transformers ignores them."""
    adapted: Callable[[dict[str, Any]], dict[str, Any]] = dict
    """Rewrites values that the system spells in another way."""

    def is_in(self, kind: Any) -> bool:
        """Whether files of a `model_type` have the text model, separately or in the full model."""
        return kind == self.kind or (bool(self.alone) and kind == self.section_type)

    def hf_config(self, whole: HFConfig) -> HFConfig:
        """Returns the values of the text model."""
        within = section(whole, "text_config")
        kind = whole.values["model_type"]
        is_alone = kind == self.section_type
        classes = self.alone if is_alone else self.classes
        given = whole.values if is_alone or (self.flat and not within) else within
        own_type = given.get("model_type")
        if own_type not in (None, self.section_type, self.kind):
            raise ConfigError(
                f"{whole.path}: text_config: model_type = {own_type!r}: must be "
                f"{self.section_type!r} in a {self.kind!r}"
            )
        named = (whole.take("architectures", None) or list(classes))[:1]
        if not isinstance(named, list) or named[0] not in classes:
            raise ConfigError(
                f"{whole.path}: architectures = {named!r} is not known for model_type "
                f"{kind!r}: must be one of {', '.join(classes)}"
            )
        tied = whole.take("tie_word_embeddings", self.tied)
        if self.tied_within:
            tied = tied or given.get("tie_word_embeddings", False)
        common = {k: whole.values[k] for k in _TOP_LEVEL_FIELDS if k in whole.values}
        values = self.adapted(dict(self.defaults) | common | dict(given)) | {
            "model_type": self.model_type,
            "architectures": [classes[named[0]]],
            "tie_word_embeddings": tied,
        }
        gone = (*self.foreign, *(_TOP_LEVEL_IMAGE_FIELDS if given is whole.values else ()))
        values = {name: value for name, value in values.items() if name not in gone}
        if given is whole.values:
            return HFConfig(values, whole.path)
        return whole.section("text_config", values)

    def model_format(self, formats: Formats) -> ModelFormat:
        """Returns the system's format, with the names of its tensors in files of the full model."""
        own = formats[self.model_type]
        images = tuple(prefix + each for prefix in ("", "model.") for each in _IMAGE_TENSORS)
        return replace(own, aliases=_NAMES | dict(own.aliases), buffers=(*own.buffers, *images))


_TOP_LEVEL_IMAGE_FIELDS = (
    "image_token_id", "video_token_id", "vision_config", "vision_end_token_id",
    "vision_start_token_id", "vision_token_id",
)  # fmt: skip
_QWEN2 = {
    "vocab_size": 152_064,
    **their_sizes(80, 8192, 64, 29_568),
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "max_window_layers": 80,
    "rope_theta": 1_000_000.0,
}


def _qwen2(kind: str, name: str) -> TextPart:
    """Returns the text model, a Qwen 2, of a system whose class names begin with `name`."""
    return TextPart(
        kind=kind,
        model_type="qwen2",
        section_type=f"{kind}_text",
        classes={
            f"{name}ForConditionalGeneration": "Qwen2ForCausalLM",
            f"{name}Model": "Qwen2Model",
        },
        alone={f"{name}TextModel": "Qwen2Model"},
        tied=False,
        flat=True,
        tied_within=True,
        defaults=_QWEN2,
        adapted=_renamed_rope,
    )


_QWEN3 = {
    "max_position_embeddings": 128_000,
    "num_key_value_heads": 32,
    "rope_theta": 500_000.0,
}
_ALL = (
    TextPart(
        kind="gemma3",
        model_type="gemma3_text",
        section_type="gemma3_text",
        classes={
            "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
            "Gemma3ForSequenceClassification": "Gemma3TextForSequenceClassification",
            "Gemma3Model": "Gemma3TextModel",
        },
        tied=True,
    ),
    _qwen2("qwen2_vl", "Qwen2VL"),
    _qwen2("qwen2_5_vl", "Qwen2_5_VL"),
    TextPart(
        kind="qwen3_vl",
        model_type="qwen3",
        section_type="qwen3_vl_text",
        classes={
            "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
            "Qwen3VLModel": "Qwen3Model",
        },
        alone={"Qwen3VLTextModel": "Qwen3Model"},
        tied=False,
        defaults=_QWEN3,
        foreign=("use_sliding_window", "sliding_window", "max_window_layers", "layer_types"),
        adapted=_renamed_rope,
    ),
)
TEXT_PARTS = {part.kind: part for part in _ALL}
"""Models of texts and images, by their `model_type`."""


def text_model_only(hf_config: HFConfig, formats: Formats) -> tuple[HFConfig, Formats]:
    """Returns the values and systems of the text model in a config.json; other models as given.

    Warns once that images are not read.
    """
    kind = hf_config.values.get("model_type")
    part = next((each for each in _ALL if each.is_in(kind)), None)
    if part is None:
        return hf_config, formats
    values = part.hf_config(hf_config)
    warn_once(
        f"{hf_config.path}: the text model of a {kind!r} is read as a {part.model_type!r}; images "
        "are not read, and their tensors are left out"
        if kind == part.kind
        else f"{hf_config.path}: a {kind!r} is read and saved as a {part.model_type!r}, "
        "which computes the same for texts"
    )
    return values, {**formats, part.model_type: part.model_format(formats)}
