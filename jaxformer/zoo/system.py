"""What the zoo knows of a published model."""

import math
from dataclasses import dataclass
from functools import partial

from jaxformer.hub.families import family_of
from jaxformer.models.build import ModelConfig, build_model
from jaxformer.models.parameters import AbstractModel


@dataclass(frozen=True)
class System:
    """One published size of one published system."""

    name: str
    """What it is called: "bert-base"."""
    recipe: str
    """The file of configs/ that trains it, and its size there: "bert.py:base"; empty: none does,
    for it learns beside another model (CLIP)."""
    config: ModelConfig
    """Its architecture."""
    published: str
    """The number of parameters that its authors give, as they write it: "110M"."""
    source: str
    """Where the sizes and that number were published."""
    note: str = ""
    """What the authors counted, where it is not this model."""

    @property
    def family(self) -> str:
        """The family: "decoder", "encoder", "encoder-decoder" or "vision"."""
        return family_of(self.config).name

    def count_parameters(self) -> int:
        """The number of parameters of our model, which is traced and not made."""
        shapes = AbstractModel(partial(build_model, config=self.config)).shapes.values()
        return sum(math.prod(shape.shape) for shape in shapes)
