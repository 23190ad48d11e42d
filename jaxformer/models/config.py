"""The configurations of the families."""

from dataclasses import dataclass

from jaxformer.nn.config import TransformerConfig, check_positive


@dataclass(frozen=True)
class DecoderConfig(TransformerConfig):
    """A decoder-only language model."""

    tie_embeddings: bool = True
    """The output head is the embedding table."""
    head_bias: bool = False
    """Bias of the output head (GPT-J, Phi)."""
    logit_softcap: float | None = None
    """Bounds the output logits (Gemma 2)."""

    def __post_init__(self):
        super().__post_init__()
        if self.logit_softcap is not None:
            check_positive("logit_softcap", self.logit_softcap)
