"""The Flax classes of transformers 4, by their names, with the models of this library.

::

    from jaxformer.flax import FlaxBertForMaskedLM

    model, params = FlaxBertForMaskedLM.from_pretrained("org/name", _do_init=False)
    logits = model(input_ids, attention_mask, params=params).logits

Arguments, outputs and the trees of parameters are those of transformers 4.55: FlaxBertModel and
the others, FlaxAutoModel..., and the outputs (FlaxMaskedLMOutput, ...).
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Makes a class when it is first used."""
    if not name.startswith("Flax") and name != "shift_tokens_right":
        raise AttributeError(f"module 'jaxformer.flax' has no attribute {name!r}")
    from jaxformer.extras import optional_module

    return optional_module("jaxformer.flax.names", f"jaxformer.flax.{name}").find(name)


def __dir__() -> list[str]:
    from jaxformer.flax.names import known

    return [*globals(), *known()]
