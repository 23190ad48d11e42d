"""Constructors of composites and dual encoders from the checkpoints of their parts."""

from itertools import zip_longest
from pathlib import Path
from typing import Any

from jaxformer import flax
from jaxformer.errors import ArgumentError
from jaxformer.flax.files import OF_CLASS, config_values
from jaxformer.hub.flax_api.config import FlaxConfig
from jaxformer.pretrained.flax_program import describe_flax

_DECODES = {"is_decoder": True, "add_cross_attention": True}
# Part -> its field in the config, its key in the tree, and the class that reads its checkpoint.
_ENCODER_DECODER = {
    "encoder": ("encoder", "encoder", "FlaxAutoModel"),
    "decoder": ("decoder", "decoder", "FlaxAutoModelForCausalLM"),
}
_VISION_TEXT = {
    "vision": ("vision_config", "vision_model", "FlaxAutoModel"),
    "text": ("text_config", "text_model", "FlaxAutoModel"),
}


def _from_parts(parts: dict[str, tuple[str, str, str]], ending: str) -> classmethod:
    def from_parts(cls, *names: str | Path, **options: Any) -> Any:
        fields: dict[str, Any] = {"model_type": cls.model_type}
        trees = {}
        for (part, (field, key, auto)), name in zip_longest(parts.items(), names):
            prefixed = [option for option in options if option.startswith(f"{part}_")]
            own = {option.removeprefix(f"{part}_"): options.pop(option) for option in prefixed}
            name = own.pop(ending, name)
            model = own.pop("model", None)
            if model is None and name is None:
                raise ArgumentError(f"{part} = None: give a checkpoint, or a model as {part}_model")
            if model is None:
                clip = part == "vision" and config_values(name, None).get("model_type") == "clip"
                made = getattr(flax, "FlaxCLIPVisionModel" if clip else auto)
                model = made.from_pretrained(name, **own)
            fields[field] = model.config.to_dict() | (_DECODES if part == "decoder" else {})
            trees[key] = model.params
        of_class = {name: options.pop(name) for name in OF_CLASS if name in options}
        values = fields | options
        known = describe_flax(values, cls.model_type, cls.architecture).hf_config.values
        model = cls(FlaxConfig(**known | values), **of_class)
        model.params = model.program.tree.completed(trees, model.params)
        return model

    first, second = parts
    from_parts.__doc__ = f"""Returns a model of two checkpoints, with new parameters between them.

    Args:
        *names: The checkpoints, or `{first}_{ending}` and `{second}_{ending}`.
        **options: `{first}_model` and `{second}_model`, models instead of checkpoints; other
            options with the prefix `{first}_` or `{second}_` for `from_pretrained` of that part;
            arguments of the class, or fields of its config.
    """
    return classmethod(from_parts)


_PATH = "pretrained_model_name_or_path"
_OF_COMPOSITE = {"from_encoder_decoder_pretrained": _from_parts(_ENCODER_DECODER, _PATH)}
CONSTRUCTORS = {
    "EncoderDecoderModel": _OF_COMPOSITE,
    "SpeechEncoderDecoderModel": _OF_COMPOSITE | {"sets": {"tie_word_embeddings": False}},
    "VisionEncoderDecoderModel": _OF_COMPOSITE,
    "VisionTextDualEncoderModel": {
        "from_vision_text_pretrained": _from_parts(_VISION_TEXT, "model_name_or_path")
    },
}
"""Class without "Flax" -> its additional constructors, and the fields that it sets."""
