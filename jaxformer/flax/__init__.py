"""The Flax classes of transformers 4, backed by the models of this library.

::

    from jaxformer.flax import FlaxBertForMaskedLM

    model, params = FlaxBertForMaskedLM.from_pretrained("org/name", _do_init=False)
    logits = model(input_ids, attention_mask, params=params).logits

The module contains all model classes (FlaxBertModel, ...), FlaxAutoModel... and the output classes
(FlaxMaskedLMOutput, ...). Arguments, outputs and parameter trees are those of transformers 4.55.
"""

from typing import Any

from jaxformer.errors import did_you_mean
from jaxformer.extras import optional_module
from jaxformer.hub.flax_classes import FLAX_CLASSES


def __getattr__(name: str) -> Any:
    """Returns a class by name; if there is none, ImportError suggests the nearest one."""
    if not name.startswith("Flax") and name != "shift_tokens_right":
        raise AttributeError(f"module 'jaxformer.flax' has no attribute {name!r}")
    names = optional_module("jaxformer.flax.auto", f"jaxformer.flax.{name}").NAMES
    if name in names:
        return names[name]
    # `from jaxformer.flax import NAME` hides the message of an AttributeError.
    if name.removeprefix("Flax") in sum(FLAX_CLASSES.values(), ()):
        raise ImportError(f"jaxformer.flax: {name} is not supported yet")
    nearest = did_you_mean(name, [each for each in names if not each.endswith("Module")])
    raise ImportError(f"jaxformer.flax: {name} never existed{nearest}")


def __dir__() -> list[str]:
    return [*globals(), *optional_module("jaxformer.flax.auto", "jaxformer.flax").NAMES]
