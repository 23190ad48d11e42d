"""A head for multiple choice among several texts."""

from dataclasses import dataclass
from typing import ClassVar

import jax

from jaxformer.checks import check_field
from jaxformer.errors import ConfigError
from jaxformer.functional.arrays import assert_axes
from jaxformer.models.heads.base import Head, Unit
from jaxformer.models.heads.labels import Classification, ClassificationHead


@dataclass(frozen=True)
class MultipleChoice(Classification):
    r"""Multiple choice among several texts (SWAG, RACE).

    .. math:: p_c = \mathrm{softmax}_c(h_c w + b)

    where h_c is the pooled state of choice c. In training the choices of a question form one row,
    in which each choice is a segment whose positions start at 0. Reads "choice", int `[B]`, the
    index of the correct choice, "choice_weights", float `[B]`, and "choice_places", int `[B, C]`,
    where each choice starts.
    """

    named_labels: ClassVar[bool] = False
    problem_type: ClassVar[str | None] = None
    unit: ClassVar[Unit] = "choice"
    predicts: ClassVar[bool] = False
    num_labels: int = 1
    """Number of scores per choice, which is 1."""
    label: str = "choice"
    """The label: the index of the correct choice, from 0."""

    def __post_init__(self):
        super().__post_init__()
        check_field(self, "num_labels", self.num_labels == 1, "1")

    @classmethod
    def for_model(cls, model, num_labels):
        return cls()

    def build(self, key, config):
        if getattr(config, "causal", False):
            raise ConfigError("model.heads: MultipleChoice needs an encoder, not a causal model")
        return MultipleChoiceHead(key, config, self)

    def reads(self, rows, length):
        if self.pooling != "first":
            raise ConfigError(
                f"model.heads: MultipleChoice.pooling = {self.pooling!r}: must be 'first' to train"
            )
        return super().reads(rows, length)

    def choices(self, config):
        """Returns None: the number of choices depends on the row."""

    def metrics(self, result, data):
        return Head.metrics(self, result, data)

    def predict_advice(self, folder):
        return (
            'jaxformer.forward scores "input_ids" [B, C, T], and python -m jaxformer evaluate '
            f"{folder} measures a run"
        )


class MultipleChoiceHead(ClassificationHead):
    """A classification head with one output, the score of a choice."""

    def scores(self, outputs, key: jax.Array | None = None):
        """Returns float32 scores, `[B]` or `[B, C]`, of pooled states `[B, D]` or `[B, C, D]`."""
        return super().scores(outputs, key)[..., 0]

    def loss(self, outputs, batch, options, key):
        assert_axes(**{"pooled states of choices": (outputs.pooled, "B C D")})
        return super().loss(outputs, batch, options, key)
