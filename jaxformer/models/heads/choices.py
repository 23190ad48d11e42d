"""A head that chooses one of several texts."""

from dataclasses import dataclass

import jax

from jaxformer.errors import check_field
from jaxformer.models.heads.labels import Classification, ClassificationHead


@dataclass(frozen=True)
class MultipleChoice(Classification):
    r"""One of several choices, each of which is a text of its own (SWAG, RACE).

    .. math:: p_c = \mathrm{softmax}_c(h_c w + b)

    where h_c is the pooled state of choice c. Reads "choice", int `[B]`, and "choice_weights",
    float `[B]`.
    """

    num_labels: int = 1
    """Scores of a choice; one."""
    label: str = "choice"
    """What is predicted: the number of the right choice, from 0."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels == 1, "1")

    def build(self, key, config):
        return MultipleChoiceHead(key, config, self)

    def choices(self, config):
        del config


class MultipleChoiceHead(ClassificationHead):
    """The layers of a classifier with one output, which is the score of a choice."""

    def scores(self, outputs, key: jax.Array | None = None):
        """float32, the shape of the pooled states without their last axis: `[B]` or `[B, C]`."""
        return super().scores(outputs, key)[..., 0]
