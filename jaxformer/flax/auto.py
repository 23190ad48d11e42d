"""The `FlaxAuto` classes, which choose the class of a checkpoint, and the names of all classes."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax.numpy as jnp

from jaxformer.errors import ConfigError
from jaxformer.flax.files import config_values, pop_hub
from jaxformer.flax.model import BASES, CLASSES, FlaxPreTrainedModel
from jaxformer.hub.flax_api.config import as_config
from jaxformer.hub.flax_api.outputs import OUTPUTS
from jaxformer.hub.flax_classes import FLAX_AUTO_ENDINGS, flax_auto_classes
from jaxformer.hub.model_format import shift_tokens_right


class FlaxAutoBase:
    """Base of the FlaxAuto classes."""

    classes: ClassVar[Mapping[str, type[FlaxPreTrainedModel]]] = {}
    """`model_type` -> class."""

    @classmethod
    def from_config(cls, config: Any, **options: Any) -> FlaxPreTrainedModel:
        """Returns a model with new parameters."""
        config = as_config(config)
        return cls._class_for(config.to_dict())(config, **options)

    @classmethod
    def from_pretrained(cls, name: str | Path, *arguments: Any, **options: Any) -> Any:
        """Loads a checkpoint; see `FlaxPreTrainedModel.from_pretrained` for the arguments."""
        values = config_values(name, options.get("config"), **pop_hub(dict(options)))
        return cls._class_for(values).from_pretrained(name, *arguments, **options)

    @classmethod
    def _class_for(cls, values: Mapping[str, Any]) -> type[FlaxPreTrainedModel]:
        kind = values.get("model_type")
        if kind not in cls.classes:
            known = ", ".join(cls.classes)
            raise ConfigError(f"model_type = {kind!r}: must be one of {known} for {cls.__name__}")
        return cls.classes[kind]


def _auto_class(task: str) -> type[FlaxAutoBase]:
    found = {kind: f"Flax{name}" for kind, name in flax_auto_classes(task).items()}
    values = {
        "__doc__": "Chooses the class of a checkpoint.",
        "__module__": "jaxformer.flax",
        "classes": {kind: CLASSES[name] for kind, name in found.items() if name in CLASSES},
    }
    return type(f"FlaxAutoModel{task}", (FlaxAutoBase,), values)


def _module_of(made: type[FlaxPreTrainedModel], config: Any, dtype: Any = jnp.float32) -> Any:
    return made(config, dtype=dtype, _do_init=False).module


NAMES: Mapping[str, Any] = {
    **CLASSES,
    # The module of FlaxBertModel is FlaxBertModule; of another, FlaxBertForMaskedLMModule.
    **{f"{n.removesuffix('Model')}Module": partial(_module_of, x) for n, x in CLASSES.items()},
    **{base.__name__: base for base in BASES.values()},
    **{f"FlaxAutoModel{task}": _auto_class(task) for task in ("", *FLAX_AUTO_ENDINGS)},
    **OUTPUTS,
    "FlaxPreTrainedModel": FlaxPreTrainedModel,
    "shift_tokens_right": shift_tokens_right,
}
"""The public names of `jaxformer.flax`."""
