"""The configuration of models that add the embedding of a type to that of each token."""

import abc
from dataclasses import dataclass

from jaxformer.errors import check_field
from jaxformer.models.model import TransformerModelConfig
from jaxformer.nn.config import TextConfig


@dataclass(frozen=True)
class TypedTextConfig(TextConfig, TransformerModelConfig, abc.ABC):
    """A model of text whose tokens may have types, besides their ids and positions."""

    token_types: int = 0
    """Rows of the table of token types: 2 in BERT (first and second sentence); 0: no table."""
    task_types: int = 0
    """Rows of the table of tasks (ERNIE); 0: no table."""

    def __post_init__(self):
        super().__post_init__()
        for name in ("token_types", "task_types"):
            check_field(self, name, getattr(self, name) >= 0, "0 or more")

    @property
    def type_sizes(self) -> dict[str, int]:
        """The rows of each table of type embeddings, by the batch's name of the ids."""
        tables = {"token_types": self.token_types, "task_types": self.task_types}
        return {name: rows for name, rows in tables.items() if rows}
