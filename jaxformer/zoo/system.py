"""Published models: their architecture, size and source."""

from dataclasses import dataclass

from jaxformer.hub.families import family_of
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel


@dataclass(frozen=True)
class System:
    """One published size of one published system."""

    name: str
    """The name: "bert-base"."""
    config: ModelConfig
    """The architecture."""
    published: str
    """The number of parameters in the publication, in its spelling: "110M"."""
    source: str
    """The publication."""
    recipe: str = ""
    """The file of configs/ that trains it, and its size there: "bert.py:base"; empty if there
    is none, as for CLIP, which is trained together with another model."""
    note: str = ""
    """What the authors counted, if it differs from this model."""

    @property
    def family(self) -> str:
        """The family: "decoder", "encoder", "encoder-decoder" or "vision"."""
        return family_of(self.config).name

    def count_parameters(self) -> int:
        """Returns the number of parameters of our model, without making its arrays."""
        return sum(shape.size for shape in AbstractModel(self.config.build).shapes.values())
