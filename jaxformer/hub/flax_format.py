"""What a system's Flax class in transformers 4 kept or computed in another way than PyTorch's.

`flax_model.msgpack` has the arrays of PyTorch's file under almost the same names, and
`hub.weights.flax_names` has the rules for all systems. An entry of the zoo states only what is
special, with `ModelFormat(flax=FlaxFormat(...))`; most state nothing::

    flax=FlaxFormat(
        # The scale of a norm is called "weight" in the tree too: T5, Llama.
        norm="weight",
        # A table that Flax computes, and that is a parameter here because PyTorch's file has it.
        fixed=lambda hf_config: {"model.encoder.embed_positions.weight": sinusoids(...)},
        # The arrays of a class without heads have this prefix all the same.
        bare_prefix="text_model.",
        # An array that the class has and never uses; it is written as zeros.
        unused=lambda hf_config, name: {"vit.embeddings.mask_token": (1, 64)},
        # A tensor that PyTorch's class has and never uses, and Flax's lacks; it is read as zeros.
        lacking=lambda hf_config, name: {"bert.pooler.bias": (768,)},
        # A head that the class keeps apart, where the config ties it to the table.
        untied={"lm_head.weight": "model.embed_tokens.weight"},
        # A field that Flax's class never read, and the value that it always computed with.
        ignored={"rope_theta": 10000.0},
        # Any other difference; an import names it in one line.
        differences=(Difference("layerscale_value", "it multiplies by it twice", same=(1.0,)),),
    )

Names are those of PyTorch's tensors in a model with heads, as in the weight map; only those of
`unused` are paths of the tree, joined by ".".
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxformer.functional.positions.absolute import sinusoidal_code
from jaxformer.hub.hf_config import HFConfig

Shape = tuple[int, ...]


class Difference(NamedTuple):
    """A field of config.json that Flax's class read in another way."""

    field: str
    """The field."""
    text: str
    """What Flax's class computes; its subject is "it"."""
    same: tuple[Any, ...] = ()
    """The values with which it makes no difference."""
    as_flax: Callable[[Any], Any] | None = None
    """Returns the value with which PyTorch's class computes the same; None: there is none."""

    def note(self, value: Any) -> str:
        """Returns what differs for a value of the field, and which other value does not."""
        note = f"{self.field} = {value!r}: {self.text}"
        if self.as_flax is None:
            return note
        return f"{note}; {self.field} = {self.as_flax(value)!r} in config.json gives its answers"


def _no_tables(hf_config: HFConfig) -> Mapping[str, np.ndarray]:
    """No table."""
    del hf_config
    return {}


def _no_arrays(hf_config: HFConfig, architecture: str) -> Mapping[str, Shape]:
    """No array."""
    del hf_config, architecture
    return {}


@dataclass(frozen=True)
class FlaxFormat:
    """What is special in a system's Flax checkpoints."""

    norm: str = "scale"
    """What the scale of a norm is called: "scale" or "weight"."""
    fixed: Callable[[HFConfig], Mapping[str, np.ndarray]] = _no_tables
    """Returns the tables that Flax computes and PyTorch's file has, by PyTorch's names."""
    bare_prefix: str = ""
    """The prefix of the arrays of a class without heads."""
    unused: Callable[[HFConfig, str], Mapping[str, Shape]] = _no_arrays
    """Returns the shapes of the arrays that a class has and does not use, by their paths in the
    tree, joined by "."; its arguments are the values of config.json and the name of the class."""
    lacking: Callable[[HFConfig, str], Mapping[str, Shape]] = _no_arrays
    """Returns the shapes of the tensors that PyTorch's class has and does not use, and Flax's
    lacks, by PyTorch's names; its arguments are those of `unused`."""
    untied: Mapping[str, str] = field(default_factory=dict)
    """PyTorch's name of a head that the class always keeps -> that of the table that it equals in a
    model that ties them."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Field of config.json that Flax's class did not read -> the value that it computed with."""
    differences: tuple[Difference, ...] = ()
    """What else Flax's class computed in another way."""

    def notes(self, hf_config: HFConfig) -> list[str]:
        """Returns what Flax's class computed in another way for this config.json, in sentences."""
        values = hf_config.values
        notes = [
            f"it always computes with {name} = {value!r}, not {values[name]!r}"
            for name, value in self.ignored.items()
            if values.get(name) not in (value, None)
        ]
        return notes + [
            each.note(values[each.field])
            for each in self.differences
            if each.field in values and values[each.field] not in each.same
        ]


def sinusoids(rows: int, width: int, layout: Literal["interleaved", "half"]) -> np.ndarray:
    """Returns the sinusoidal table that Flax's classes computed.

    Args:
        rows: The number of positions.
        width: D.
        layout: As for `functional.positions.absolute.sinusoidal_code`.
    """
    code = sinusoidal_code(jnp.arange(rows), model_dim=width, theta=10000.0, layout=layout)
    return np.asarray(code)
