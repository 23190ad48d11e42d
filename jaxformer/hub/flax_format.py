"""How the Flax class of a model type in transformers 4 differs from PyTorch's.

`flax_model.msgpack` has the arrays of PyTorch's file under almost the same names, and
`hub.weights.flax_names` has the rules for all systems. An entry of the zoo states only the
differences, with `ModelFormat(flax=FlaxFormat(...))`; most have none::

    flax=FlaxFormat(
        # The scale of a norm is called "weight" in the tree too: T5, Llama.
        norm="weight",
        # A table that Flax computes; it is a parameter here because PyTorch's file has it.
        fixed=lambda hf_config: {"model.encoder.embed_positions.weight": sinusoids(...)},
        # The prefix that the arrays of a class without heads have, unlike PyTorch's.
        bare_prefix="text_model.",
        # An array that the class has but never uses; it is written as zeros.
        unused=lambda hf_config, name: {"vit.embeddings.mask_token": (1, 64)},
        # A tensor that PyTorch's class has but never uses; Flax has none, and it is read as zeros.
        lacking=lambda hf_config, name: {"bert.pooler.bias": (768,)},
        # A head that the class stores separately, even if the config ties it to the table.
        untied={"lm_head.weight": "model.embed_tokens.weight"},
        # A field that Flax's class never read, and the value that it used.
        ignored={"rope_theta": 10000.0},
        # Any other difference; an import warns about it in one line.
        differences=(Difference("layerscale_value", "it applies the scale twice", same=(1.0,)),),
    )

Names are PyTorch's tensor names in a model with heads, as in the weight map; only `unused` has
paths of the tree, joined by ".".
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


def _no_tables(hf_config: HFConfig) -> Mapping[str, np.ndarray]:
    """The default of `fixed`: no tables."""
    del hf_config
    return {}


def _no_arrays(hf_config: HFConfig, architecture: str) -> Mapping[str, Shape]:
    """The default of `unused` and `lacking`: no arrays."""
    del hf_config, architecture
    return {}


@dataclass(frozen=True)
class FlaxFormat:
    """How a model type's Flax checkpoints differ from the general rules."""

    norm: str = "scale"
    """The name of a norm's scale: "scale" or "weight"."""
    fixed: Callable[[HFConfig], Mapping[str, np.ndarray]] = _no_tables
    """Makes the tables that Flax computes but PyTorch stores, by PyTorch's names."""
    bare_prefix: str = ""
    """The prefix of the arrays of a class without heads."""
    unused: Callable[[HFConfig, str], Mapping[str, Shape]] = _no_arrays
    """Returns the shapes of the arrays that a class has but does not use, by their paths joined by
    "."; takes the values of config.json and the name of the class."""
    lacking: Callable[[HFConfig, str], Mapping[str, Shape]] = _no_arrays
    """Returns the shapes of the tensors that PyTorch's class has but does not use and Flax's lacks,
    by PyTorch's names; takes the same arguments as `unused`."""
    untied: Mapping[str, str] = field(default_factory=dict)
    """Head that the class always stores -> the table that it equals if they are tied, both by
    PyTorch's names."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Field of config.json that Flax's class did not read -> the value that it used."""
    states_end_normalised: bool = True
    """Whether the last hidden state of Flax's class was normalised, where that of PyTorch's is."""
    differences: tuple[Difference, ...] = ()
    """Other fields that Flax's class interpreted differently."""

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
