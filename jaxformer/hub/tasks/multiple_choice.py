"""The task of the classes for multiple choice, whose inputs have an axis of choices."""

from dataclasses import dataclass

from jaxformer.hub.tasks.classes import Task, scored
from jaxformer.models import Dense, ModelOutput, MultipleChoice
from jaxformer.models.heads.labels import Pooling
from jaxformer.models.model import Model


@dataclass(frozen=True)
class MultipleChoiceTask(Task):
    """Chooses one of several texts: inputs `[B, C, T]`, scores `[B, C]`."""

    head_types = (MultipleChoice,)
    pooling: Pooling = "first"
    """The pooling of a choice's states."""
    dense: Dense | None = None
    """A layer before the output layer."""

    def heads(self, hf_config):
        return (MultipleChoice(pooling=self.pooling, dense=self.dense),)

    def rows(self, inputs, hf_config):
        """Returns the inputs with one row per choice."""
        return {
            name: array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array
            for name, array in inputs.items()
        }

    def outputs(self, model, states, inputs, hf_config):
        scores = model.heads["choice"].scores(self.pooled(model, states), states.key)
        return scored(scores.reshape(inputs["input_ids"].shape[:2]), inputs)

    def pooled(self, model: Model, states: ModelOutput) -> ModelOutput:
        """Returns the states, with the state to be pooled for each choice."""
        return states


@dataclass(frozen=True)
class FirstTokenChoiceTask(MultipleChoiceTask):
    """Multiple choice by the first token that is not padding (ModernBERT)."""

    def pooled(self, model, states):
        return states._replace(pooled=model.pooled(states.hidden, states.valid))


@dataclass(frozen=True)
class LastPositionChoiceTask(MultipleChoiceTask):
    """Multiple choice by the last position of a row, possibly padding (RoFormer)."""

    pooling: Pooling = "last"

    def heads(self, hf_config):
        hf_config.expect("summary_type", "last", None)
        hf_config.expect("summary_activation", None)
        hf_config.expect("summary_use_proj", False, None)
        return super().heads(hf_config)

    def pooled(self, model, states):
        return states._replace(valid=None)
