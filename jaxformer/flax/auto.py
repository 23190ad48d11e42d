"""The `FlaxAuto` classes, which choose the class of a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from jaxformer.errors import ConfigError
from jaxformer.flax.config import as_config
from jaxformer.flax.model import FlaxPreTrainedModel, model_class
from jaxformer.hub.flax_classes import FLAX_CLASSES
from jaxformer.hub.hf_config import HFConfig
from jaxformer.pretrained.auto import model_folder

_DENOISING = ("bart", "mbart")
_SEQ2SEQ = ("ForConditionalGeneration", "MTModel")
_ENDINGS = {
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
    "ForVision2Seq": ("VisionEncoderDecoderModel",),
}
"""The end of the name of a FlaxAuto class -> those of the classes that it chooses from."""


def _chosen(task: str, kind: str) -> str | None:
    """The class of a model type for a task, without "Flax"."""
    names = FLAX_CLASSES.get(kind, ())
    if task == "":
        bodies = [n for n in names if n.endswith("Model") and "EncoderDecoder" not in n]
        return min(bodies, key=len, default=None)
    endings = _ENDINGS[task]
    if task == "ForMaskedLM" and kind in _DENOISING:
        endings = _SEQ2SEQ
    return next((n for ending in endings for n in names if n.endswith(ending)), None)


class FlaxAutoBase:
    """Base of the FlaxAuto classes."""

    task: ClassVar[str] = ""
    """The end of the class's name."""

    @classmethod
    def classes(cls) -> Mapping[str, type[FlaxPreTrainedModel]]:
        """Returns the class of each `model_type`."""
        found = {kind: _chosen(cls.task, kind) for kind in FLAX_CLASSES}
        made = {kind: model_class(f"Flax{name}") for kind, name in found.items() if name}
        return {kind: each for kind, each in made.items() if each is not None}

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> FlaxPreTrainedModel:
        """Returns a model with new parameters."""
        config = as_config(config)
        return cls._class_for(config.to_dict())(config, **options)

    @classmethod
    def from_pretrained(cls, name: str | Path, *arguments: Any, **options: Any) -> Any:
        """Loads a checkpoint; see `FlaxPreTrainedModel.from_pretrained` for the arguments."""
        if options.get("config") is not None and not isinstance(options["config"], str | Path):
            values = as_config(options["config"]).to_dict()
        else:
            known = ("revision", "token", "cache_dir", "subfolder")
            hub = {key: options[key] for key in known if key in options}
            values = HFConfig.of_folder(model_folder(name, "name", **hub)).values
        return cls._class_for(values).from_pretrained(name, *arguments, **options)

    @classmethod
    def _class_for(cls, values: Mapping[str, Any]) -> type[FlaxPreTrainedModel]:
        kind, classes = values.get("model_type"), cls.classes()
        if kind not in classes:
            raise ConfigError(
                f"model_type = {kind!r}: must be one of {', '.join(classes)} for {cls.__name__}"
            )
        return classes[kind]


AUTO_CLASSES: Mapping[str, type[FlaxAutoBase]] = {
    f"FlaxAutoModel{task}": type(
        f"FlaxAutoModel{task}",
        (FlaxAutoBase,),
        {"task": task, "__module__": "jaxformer.flax", "__doc__": "Chooses a checkpoint's class."},
    )
    for task in ("", *_ENDINGS)
}
"""The FlaxAuto classes by name."""
