"""The constructors of composites and dual encoders from the checkpoints of their parts."""

from pathlib import Path
from typing import Any

from jaxformer import flax
from jaxformer.errors import ArgumentError
from jaxformer.flax.config import FlaxConfig
from jaxformer.flax.files import OF_CLASS, config_values

_DECODES = {"is_decoder": True, "add_cross_attention": True}


class EncoderDecoderMixin:
    """`from_encoder_decoder_pretrained`."""

    @classmethod
    def from_encoder_decoder_pretrained(
        cls,
        encoder_pretrained_model_name_or_path: str | Path | None = None,
        decoder_pretrained_model_name_or_path: str | Path | None = None,
        **options: Any,
    ) -> Any:
        """Returns a model of an encoder and a decoder, with new cross-attention.

        Args:
            encoder_pretrained_model_name_or_path: The checkpoint of the encoder.
            decoder_pretrained_model_name_or_path: The checkpoint of the decoder.
            **options: `encoder_model` or `decoder_model` for a model in place of a checkpoint;
                "encoder_..." and "decoder_..." for `from_pretrained` of a part; arguments of the
                class, or fields of its config.
        """
        encoder = _part("encoder", encoder_pretrained_model_name_or_path, "FlaxAutoModel", options)
        decoder = _part(
            "decoder", decoder_pretrained_model_name_or_path, "FlaxAutoModelForCausalLM", options
        )
        fields = {"is_encoder_decoder": True, "encoder": encoder.config.to_dict()}
        fields["decoder"] = decoder.config.to_dict() | _DECODES
        return _joined(cls, fields, {"encoder": encoder.params, "decoder": decoder.params}, options)


class VisionTextMixin:
    """`from_vision_text_pretrained`."""

    @classmethod
    def from_vision_text_pretrained(
        cls,
        vision_model_name_or_path: str | Path | None = None,
        text_model_name_or_path: str | Path | None = None,
        **options: Any,
    ) -> Any:
        """Returns a dual encoder of an image encoder and a text encoder, with new projections.

        Args:
            vision_model_name_or_path: The checkpoint of the image encoder, or one of CLIP.
            text_model_name_or_path: The checkpoint of the text encoder.
            **options: `vision_model` or `text_model` for a model in place of a checkpoint;
                "vision_..." and "text_..." for `from_pretrained` of a part; arguments of the
                class, or fields of its config (`projection_dim`, ...).
        """
        name = vision_model_name_or_path
        clip = name is not None and config_values(name, None).get("model_type") == "clip"
        vision = _part("vision", name, "FlaxCLIPVisionModel" if clip else "FlaxAutoModel", options)
        text = _part("text", text_model_name_or_path, "FlaxAutoModel", options)
        fields = {"vision_config": vision.config.to_dict(), "text_config": text.config.to_dict()}
        trees = {"vision_model": vision.params, "text_model": text.params}
        return _joined(cls, fields, trees, options)


def _part(part: str, name: Any, class_name: str, options: dict[str, Any]) -> Any:
    """The model of a part; removes its options."""
    own = {
        key.removeprefix(f"{part}_"): options.pop(key)
        for key in list(options)
        if key.startswith(f"{part}_")
    }
    if (given := own.pop("model", None)) is not None:
        return given
    if name is None:
        raise ArgumentError(f"{part}: must be the name of a checkpoint, or {part}_model a model")
    return getattr(flax, class_name).from_pretrained(name, **own)


def _joined(cls: type, fields: dict[str, Any], trees: dict[str, Any], options: Any) -> Any:
    """A model of this class with the parameters of its parts."""
    own = {name: options.pop(name) for name in OF_CLASS if name in options}
    model = cls(FlaxConfig(model_type=cls.model_type, **fields | options), **own)
    model.params = model.program.tree.completed(trees, model.params)
    return model


COMPOSITES = {
    "EncoderDecoderModel": (EncoderDecoderMixin,),
    "VisionEncoderDecoderModel": (EncoderDecoderMixin,),
    "VisionTextDualEncoderModel": (VisionTextMixin,),
}
"""Class without "Flax" -> what it has besides the methods of others."""
