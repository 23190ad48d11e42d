"""Encoders in both libraries, with each of their heads."""

from dataclasses import dataclass

import hf_mapping
import hf_names
from hf_case import HEADS, HF_TEXT, NORM, PAD, SIZES, VOCAB, Case, case

from jaxformer.functional import LayerNorm, Learned
from jaxformer.hub.fields import build_with
from jaxformer.models import EncoderConfig


def encoder(*heads: str, **changes) -> EncoderConfig:
    fields = {
        "vocab_size": VOCAB,
        "model_dim": 48,
        "position": Learned(max_length=17),
        "norm": NORM,
        "embedding_norm": NORM,
        "heads": tuple(HEADS[head] for head in heads),
    }
    return build_with(EncoderConfig, SIZES | fields | changes)


@dataclass(frozen=True)
class System:
    """An encoder that transformers has with several heads."""

    prefix: str
    names: hf_mapping.Names
    theirs: dict
    ours: dict
    pooler: str = "tanh"
    """That of its classifiers."""

    def case(self, task: str) -> Case:
        """The model that does a task, by its class name in transformers."""
        scores = TASKS[task]
        labels = {"span": 2, "rating": 1}.get(next(iter(scores)), 3)
        labels = 2 if "sentence_order" in scores else labels
        pooled = {"pooler": self.pooler} if {"label", "rating", *PAIRS} & set(scores) else {}
        model_class = f"{self.prefix}For{task.removesuffix(' of numbers')}"
        ours, theirs = encoder(*scores, **self.ours, **pooled), self.theirs | {"num_labels": labels}
        return case(model_class, self.names, theirs, ours, scores)


PAIRS = ("next_sentence", "sentence_order")
TASKS = {
    "PreTraining": {
        "masked_language_model": "prediction_logits",
        "next_sentence": "seq_relationship_logits",
    },
    "MaskedLM": {"masked_language_model": "logits"},
    "SequenceClassification": {"label": "logits"},
    "SequenceClassification of numbers": {"rating": "logits"},
    "TokenClassification": {"tags": "logits"},
    "QuestionAnswering": {"span": "start end"},
}
BERT = System("Bert", hf_names.BERT, HF_TEXT | {"type_vocab_size": 3}, {"token_types": 3})
ROBERTA = System(
    "Roberta",
    hf_names.ROBERTA,
    HF_TEXT | {"hidden_size": 30, "max_position_embeddings": 19, "type_vocab_size": 1},
    {"model_dim": 30, "position": Learned(max_length=17, offset=2), "token_types": 1},
)
DISTILBERT = System(
    "DistilBert",
    hf_names.DISTILBERT,
    {
        "vocab_size": VOCAB,
        "pad_token_id": PAD,
        "max_position_embeddings": 17,
        "n_layers": 3,
        "n_heads": 6,
        "dim": 30,
        "hidden_dim": 22,
    },
    {"model_dim": 30, "norm": LayerNorm(eps=1e-12), "embedding_norm": LayerNorm(eps=1e-12)},
    pooler="relu",
)
ERNIE = System(
    "Ernie",
    hf_names.ERNIE,
    HF_TEXT | {"type_vocab_size": 3, "use_task_id": True, "task_type_vocab_size": 4},
    {"token_types": 3, "task_types": 4},
)
ALBERT = System(
    "Albert",
    hf_names.ALBERT,
    HF_TEXT | {"embedding_size": 20, "num_hidden_groups": 1, "type_vocab_size": 3},
    {
        "layer_repeats": 3,
        "embedding_dim": 20,
        "token_types": 3,
        "feed_forward.activation": "gelu_tanh",
    },
)
ALBERT_IN_GROUPS = System(
    "Albert",
    hf_names.ALBERT,
    ALBERT.theirs | {"num_hidden_layers": 4, "num_hidden_groups": 2},
    ALBERT.ours | {"num_layers": 4, "layer_repeats": 2},
)


def albert_pre_training() -> Case:
    scores = {"masked_language_model": "prediction_logits", "sentence_order": "sop_logits"}
    ours = encoder(*scores, **ALBERT_IN_GROUPS.ours, pooler="tanh")
    theirs = ALBERT_IN_GROUPS.theirs | {"num_labels": 2}
    return case("AlbertForPreTraining", hf_names.ALBERT, theirs, ours, scores)


ENCODERS = {f"BERT {task}": BERT.case(task) for task in TASKS if task != "MaskedLM"}
ENCODERS |= {
    f"{name} {task}": system.case(task)
    for name, system, tasks in (
        ("RoBERTa", ROBERTA, ("MaskedLM", "SequenceClassification", "QuestionAnswering")),
        ("DistilBERT", DISTILBERT, [t for t in TASKS if t != "PreTraining" and "numb" not in t]),
        ("ALBERT", ALBERT, ("MaskedLM", "SequenceClassification", "TokenClassification")),
        ("ERNIE", ERNIE, ("PreTraining", "SequenceClassification")),
    )
    for task in tasks
}
ENCODERS["ALBERT PreTraining in groups"] = albert_pre_training()
