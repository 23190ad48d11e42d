"""The tasks of dual encoders, and of their text and image models."""

from dataclasses import dataclass

from jaxformer.errors import DataError
from jaxformer.hub.tasks.classes import EndTokenTask, Task, TextEmbeddingTask
from jaxformer.models import Contrastive, Projection


@dataclass(frozen=True)
class ContrastiveTask(Task):
    """The similarity of each text and image, with a contrastive loss."""

    head_types = (Contrastive,)
    head: Contrastive = Contrastive()
    """The loss."""

    def heads(self, hf_config):
        return (self.head,)

    def outputs(self, model, states, inputs, hf_config):
        logits = states.similarities
        if logits is None:
            return {}
        outputs = {"logits_per_text": logits, "logits_per_image": logits.T}
        if "return_loss" in inputs:
            texts, images = logits.shape
            if texts != images:
                raise DataError(
                    f"inputs: return_loss = True: {texts} texts and {images} images do not pair "
                    "up; give as many images as texts"
                )
            sums = self.head.function(logits)
            outputs["loss"] = sums.loss / sums.weight
        return outputs


@dataclass(frozen=True)
class PooledEmbeddingTask(Task):
    """A projection of the pooled state of a text or an image, and that state."""

    name: str = "text_embeds"
    """The name of the projection."""

    def heads(self, hf_config):
        return (Projection(hf_config.number("projection_dim")),)

    def outputs(self, model, states, inputs, hf_config):
        vectors = model.heads["projection"].scores(states)
        return {self.name: vectors, "pooler_output": states.pooled}


@dataclass(frozen=True)
class EndTokenEmbeddingTask(TextEmbeddingTask):
    """A projection of the state at the end token of a text (CLIP), and that state."""

    def outputs(self, model, states, inputs, hf_config):
        pooled = EndTokenTask.outputs(self, model, states, inputs, hf_config)
        return pooled | super().outputs(model, states, inputs, hf_config)
