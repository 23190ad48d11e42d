"""A small model in both libraries, ours and transformers', and sizes that all of them have."""

from collections.abc import Callable
from dataclasses import dataclass

import hf_mapping

from jaxformer.functional import LayerNorm
from jaxformer.models import (
    Classification,
    MaskedLanguageModel,
    ModelConfig,
    Regression,
    Span,
    TokenClassification,
)

VOCAB, PAD, EPS, ROWS = 53, 1, 1e-3, 4


@dataclass(frozen=True)
class Case:
    """One model in both libraries."""

    model_class: str
    names: hf_mapping.Names
    theirs: dict
    ours: ModelConfig
    scores: dict[str, str]
    """Our head -> their output."""
    labels: dict[str, str]
    """Our key of the batch -> their argument."""
    run: Callable = lambda model, arguments: model(**arguments)
    """Their outputs; another function where theirs has no such head."""


HEADS = {
    "masked_language_model": MaskedLanguageModel(),
    "next_sentence": Classification(label="next_sentence"),
    "sentence_order": Classification(label="sentence_order"),
    "label": Classification(num_labels=3),
    "rating": Regression(label="rating"),
    "tags": TokenClassification(num_labels=3),
    "span": Span(),
}
LABELS = {
    "masked_language_model": "labels",
    "language_model": "labels",
    "tags": "labels",
    "label": "labels",
    "rating": "labels",
    "next_sentence": "next_sentence_label",
    "sentence_order": "sentence_order_label",
}
KEYS = {"masked_language_model": "targets", "language_model": "targets", "tags": "targets"}


def case(model_class, names, theirs, ours, scores, **others) -> Case:
    labels = {KEYS.get(head, head): LABELS[head] for head in scores if head in LABELS}
    return Case(model_class, names, theirs, ours, scores, labels, **others)


# Sizes that do not divide one another where they need not.
SIZES = {"num_layers": 3, "num_heads": 6, "mlp_dim": 22, "compute_dtype": "float32"}
HF_SIZES = {"num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 22}
HF_TEXT = HF_SIZES | {"vocab_size": VOCAB, "pad_token_id": PAD, "max_position_embeddings": 17}
HF_TEXT |= {"layer_norm_eps": EPS, "hidden_size": 48, "num_labels": 3}
NORM = LayerNorm(eps=EPS)
