"""The differences between the Flax and PyTorch classes of a model type in transformers 4.

`flax_model.msgpack` contains the arrays of PyTorch's file under almost the same names;
`hub.weights.flax_names` has the general rules. An entry of the zoo states only exceptions, with
`ModelFormat(flax=FlaxFormat(...))`; most have none.
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
    """A field of config.json that the Flax class interpreted differently."""

    field: str
    text: str
    """What the Flax class computes, as a sentence with the subject "it"."""
    same: tuple[Any, ...] = ()
    """The values for which both classes agree."""
    as_flax: Callable[[Any], Any] | None = None
    """Maps a value to the equivalent value for PyTorch's class, or to None if there is none."""

    def note(self, value: Any) -> str:
        """Describes the difference for this value, and the value that reproduces Flax, if any."""
        note = f"{self.field} = {value!r}: {self.text}"
        if self.as_flax is None:
            return note
        return f"{note}; {self.field} = {self.as_flax(value)!r} in config.json gives its results"


def _empty(*_: Any) -> dict[str, Any]:
    """The default of `fixed`, `unused` and `lacking`: empty."""
    return {}


@dataclass(frozen=True)
class FlaxFormat:
    """The exceptions of a model type's Flax checkpoints from the general rules.

    Tensor names are those of PyTorch's model with heads, as in the weight map. Functions take the
    values of config.json and the class name.
    """

    norm: str = "scale"
    """The name of a norm's scale: "scale", or "weight" (T5, Llama)."""
    fixed: Callable[[HFConfig], Mapping[str, np.ndarray]] = _empty
    """Makes the tables, by name, that Flax computes but PyTorch stores."""
    bare_prefix: str = ""
    """The prefix of the arrays in a class without heads, which PyTorch lacks: "text_model."."""
    unused: Callable[[HFConfig, str], Mapping[str, Shape]] = _empty
    """Returns the unused arrays of a class, written as zeros: path joined by "." -> shape."""
    lacking: Callable[[HFConfig, str], Mapping[str, Shape]] = _empty
    """Returns unused tensors of PyTorch's class that Flax's lacks, read as zeros: name -> shape."""
    untied: Mapping[str, str] = field(default_factory=dict)
    """Head that the class always stores -> the table that it may be tied to."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Field of config.json that the Flax class ignored -> the value that it used."""
    states_end_normalised: bool = True
    """Whether the Flax class normalised the last hidden state where PyTorch's class does."""
    differences: tuple[Difference, ...] = ()
    """Other fields that the Flax class interpreted differently; an import warns about them."""

    def notes(self, hf_config: HFConfig) -> list[str]:
        """Describes in sentences what the Flax class computed differently for this config.json."""
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
    """Returns the sinusoidal table `[rows, D]` of the Flax classes."""
    code = sinusoidal_code(jnp.arange(rows), model_dim=width, theta=10000.0, layout=layout)
    return np.asarray(code)
