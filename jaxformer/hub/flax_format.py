"""How the Flax class of a model type in transformers 4 differs from PyTorch's.

`flax_model.msgpack` has the arrays of PyTorch's file under almost the same names, and
`hub.weights.flax_names` has the rules for all systems. An entry of the zoo states only the
differences, with `ModelFormat(flax=FlaxFormat(...))`; most have none.
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
    """A field of config.json that Flax's class interpreted in another way."""

    field: str
    text: str
    """What Flax's class computes, as a sentence with the subject "it"."""
    same: tuple[Any, ...] = ()
    """The values for which both classes agree."""
    as_flax: Callable[[Any], Any] | None = None
    """Maps a value to the one with which PyTorch's class computes the same; None: no value does."""

    def note(self, value: Any) -> str:
        """Returns what differs for this value, and the value that reproduces Flax, if any."""
        note = f"{self.field} = {value!r}: {self.text}"
        if self.as_flax is None:
            return note
        return f"{note}; {self.field} = {self.as_flax(value)!r} in config.json gives its results"


def _nothing(*_: Any) -> dict[str, Any]:
    """The default of `fixed`, `unused` and `lacking`: there are none."""
    return {}


@dataclass(frozen=True)
class FlaxFormat:
    """How a model type's Flax checkpoints differ from the general rules.

    Names of tensors are PyTorch's in a model with heads, as in the weight map. Functions take the
    values of config.json, and the name of the class.
    """

    norm: str = "scale"
    """The name of a norm's scale: "scale", or "weight" (T5, Llama)."""
    fixed: Callable[[HFConfig], Mapping[str, np.ndarray]] = _nothing
    """Makes the tables that Flax computes but PyTorch stores, by their names."""
    bare_prefix: str = ""
    """The prefix that the arrays of a class without heads have, unlike PyTorch's: "text_model."."""
    unused: Callable[[HFConfig, str], Mapping[str, Shape]] = _nothing
    """Returns the arrays that a class has but does not use, which are written as zeros: path in the
    tree, joined by "." -> shape."""
    lacking: Callable[[HFConfig, str], Mapping[str, Shape]] = _nothing
    """Returns the tensors that PyTorch's class has but does not use and Flax's lacks, which are
    read as zeros: name -> shape."""
    untied: Mapping[str, str] = field(default_factory=dict)
    """Head that the class always stores -> the table that it equals if they are tied."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Field of config.json that Flax's class did not read -> the value that it used."""
    states_end_normalised: bool = True
    """Whether the last hidden state of Flax's class was normalised, where that of PyTorch's is."""
    differences: tuple[Difference, ...] = ()
    """Other fields that Flax's class interpreted differently; an import warns about them."""

    def notes(self, hf_config: HFConfig) -> list[str]:
        """Returns what Flax's class computed differently for this config.json, in sentences."""
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
    """Returns the sinusoidal table `[rows, D]` that Flax's classes computed."""
    code = sinusoidal_code(jnp.arange(rows), model_dim=width, theta=10000.0, layout=layout)
    return np.asarray(code)
