"""What a system's Flax class in transformers 4 kept or computed in another way than PyTorch's.

`flax_model.msgpack` has the arrays of PyTorch's file under almost the same names, and
`hub.weights.flax_names` has the rules for all systems. An entry of the zoo states only what is
special, with `ModelFormat(flax=FlaxFormat(...))`; most state nothing::

    flax=FlaxFormat(
        # config.json of FlaxBertForCausalLM says "BertForCausalLM".
        classes={"BertForCausalLM": "BertLMHeadModel"},
        # The scale of a norm is called "weight" in the tree too: T5, Llama.
        norm="weight",
        # A table that Flax computes, and that is a parameter here because PyTorch's file has it.
        fixed=lambda hf_config: {"model.encoder.embed_positions.weight": sinusoids(...)},
        # An array that the class has and never uses; it is written as zeros.
        unused=lambda hf_config: {"vit.embeddings.mask_token": (1, 64)},
        # A field that Flax's class never read, and the value that it always computed with.
        ignored={"rope_theta": 10000.0},
        # Any other difference, which an import names in one line.
        differences=("Flax's attention window is one token wider",),
    )

Names are those of PyTorch's tensors in a model with heads, as in the weight map.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxformer.hub.hf_config import HFConfig

Shape = tuple[int, ...]


def _no_tables(hf_config: HFConfig) -> Mapping[str, np.ndarray]:
    del hf_config
    return {}


def _no_arrays(hf_config: HFConfig, architecture: str) -> Mapping[str, Shape]:
    del hf_config, architecture
    return {}


@dataclass(frozen=True)
class FlaxFormat:
    """What is special in a system's Flax checkpoints."""

    classes: Mapping[str, str] = field(default_factory=dict)
    """Name in config.json -> the name of PyTorch's class."""
    norm: str = "scale"
    """What the scale of a norm is called: "scale" or "weight"."""
    fixed: Callable[[HFConfig], Mapping[str, np.ndarray]] = _no_tables
    """Returns the tables that Flax computes and PyTorch's file has, by PyTorch's names."""
    unused: Callable[[HFConfig, str], Mapping[str, Shape]] = _no_arrays
    """Returns the shapes of the arrays that a class has and does not use, by their paths in the
    tree, joined by "."; its arguments are the values of config.json and the name of the class."""
    ignored: Mapping[str, Any] = field(default_factory=dict)
    """Field of config.json that Flax's class does not read -> the value that it computes with."""
    differences: tuple[str, ...] = ()
    """What else Flax's class computes in another way, each in a sentence."""

    def notes(self, hf_config: HFConfig) -> list[str]:
        """Returns what Flax's class computed in another way for this config.json, in sentences."""
        notes = [
            f"it computed with {name} = {value!r}, not {hf_config.values[name]!r}"
            for name, value in self.ignored.items()
            if name in hf_config.values and hf_config.values[name] not in (value, None)
        ]
        return [*notes, *self.differences]
