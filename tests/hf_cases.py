"""Small models in both libraries: ours and transformers', and the same batch for each."""

from collections.abc import Callable
from dataclasses import dataclass

import hf_families
import numpy as np

from jaxformer.functional.norms import LayerNorm, RMSNorm
from jaxformer.functional.positional_schemes import Learned, Sinusoidal, T5Bias
from jaxformer.models import (
    Classification,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    MaskedLanguageModel,
    ModelConfig,
    Regression,
    Span,
    TokenClassification,
    VisionConfig,
)
from jaxformer.nn import PostNorm

VOCAB, PAD, EPS, ROWS = 53, 1, 1e-3, 4


@dataclass(frozen=True)
class Case:
    """One model in both libraries."""

    model_class: str
    names: hf_families.Names
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


def encoder(*heads: str, **changes) -> EncoderConfig:
    fields = {
        "vocab_size": VOCAB,
        "model_dim": 48,
        "position": Learned(max_length=17),
        "norm": NORM,
        "embedding_norm": NORM,
        "heads": tuple(HEADS[head] for head in heads),
    }
    return EncoderConfig(**(SIZES | fields | changes))


@dataclass(frozen=True)
class System:
    """An encoder that transformers has with several heads."""

    prefix: str
    names: hf_families.Names
    theirs: dict
    ours: dict
    pooler: str = "tanh"
    """That of its classifiers."""

    def case(self, task: str) -> Case:
        """The model that does a task, in transformers' words."""
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
BERT = System("Bert", hf_families.BERT, HF_TEXT | {"type_vocab_size": 3}, {"token_types": 3})
ROBERTA = System(
    "Roberta",
    hf_families.ROBERTA,
    HF_TEXT | {"hidden_size": 30, "max_position_embeddings": 19, "type_vocab_size": 1},
    {"model_dim": 30, "position": Learned(max_length=17, offset=2), "token_types": 1},
)
DISTILBERT = System(
    "DistilBert",
    hf_families.DISTILBERT,
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
    hf_families.ERNIE,
    HF_TEXT | {"type_vocab_size": 3, "use_task_id": True, "task_type_vocab_size": 4},
    {"token_types": 3, "task_types": 4},
)
ALBERT = System(
    "Albert",
    hf_families.ALBERT,
    HF_TEXT | {"embedding_size": 20, "num_hidden_groups": 1, "type_vocab_size": 3},
    {
        "layer_repeats": 3,
        "embedding_dim": 20,
        "token_types": 3,
        "activation": "gelu_tanh",
    },
)
ALBERT_IN_GROUPS = System(
    "Albert",
    hf_families.ALBERT,
    ALBERT.theirs | {"num_hidden_layers": 4, "num_hidden_groups": 2},
    ALBERT.ours | {"num_layers": 4, "layer_repeats": 2},
)


def albert_pre_training() -> Case:
    scores = {"masked_language_model": "prediction_logits", "sentence_order": "sop_logits"}
    ours = encoder(*scores, **ALBERT_IN_GROUPS.ours, pooler="tanh")
    theirs = ALBERT_IN_GROUPS.theirs | {"num_labels": 2}
    return case("AlbertForPreTraining", hf_families.ALBERT, theirs, ours, scores)


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


WORDS = {"language_model": "logits"}


def encoder_decoder(**changes) -> EncoderDecoderConfig:
    fields = {"vocab_size": VOCAB, "model_dim": 48, "num_decoder_layers": 2}
    return EncoderDecoderConfig(**(SIZES | fields | changes))


T5_SIZES = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "d_model": 48,
    "d_kv": 5,
    "d_ff": 22,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 6,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "layer_norm_epsilon": EPS,
}


def t5(**changes) -> EncoderDecoderConfig:
    fields = {
        "position": T5Bias(8, 9, bidirectional=True),
        "decoder_position": T5Bias(8, 9, bidirectional=False),
        "norm": RMSNorm(eps=EPS),
        "head_dim": 5,
        "attention_scale": 1.0,
    }
    return encoder_decoder(**(fields | changes))


BART_SIZES = {
    "vocab_size": VOCAB,
    "pad_token_id": PAD,
    "d_model": 48,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 6,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 22,
    "decoder_ffn_dim": 22,
    "max_position_embeddings": 17,
    "decoder_start_token_id": 2,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
}


def transformer_2017(position, **changes) -> EncoderDecoderConfig:
    fields = {
        "position": position,
        "decoder_position": position,
        "norm": LayerNorm(eps=1e-5),
        "residual": PostNorm(),
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "head_bias": True,
    }
    return encoder_decoder(**(fields | changes))


def bart(scaled: bool) -> Case:
    config = transformer_2017(
        Learned(max_length=17, offset=2),
        embedding_norm=LayerNorm(eps=1e-5),
        activation="gelu",
        embedding_scale=48**0.5 if scaled else 1.0,
    )
    theirs = BART_SIZES | {"scale_embedding": scaled}
    model = "BartForConditionalGeneration"
    return case(model, hf_families.BART, theirs, config, WORDS)


MARIAN_SIZES = BART_SIZES | {"scale_embedding": True, "activation_function": "relu"}
MARIAN = {
    "position": Sinusoidal(layout="half"),
    "activation": "relu",
    "embedding_scale": 48**0.5,
}

ENCODER_DECODERS = {
    "T5": case(
        "T5ForConditionalGeneration",
        hf_families.T5,
        T5_SIZES,
        t5(gated=False, activation="relu", logit_scale=48**-0.5),
        WORDS,
    ),
    "T5 v1.1": case(
        "T5ForConditionalGeneration",
        hf_families.T5_GATED,
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        t5(activation="gelu_tanh", tie_embeddings=False),
        WORDS,
    ),
    "mT5": case(
        "MT5ForConditionalGeneration",
        hf_families.T5_GATED,
        T5_SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
        t5(activation="gelu_tanh", tie_embeddings=False),
        WORDS,
    ),
    "BART": bart(scaled=False),
    "BART, scaled embeddings": bart(scaled=True),
    "Marian": case(
        "MarianMTModel", hf_families.BART, MARIAN_SIZES, transformer_2017(**MARIAN), WORDS
    ),
    "Marian, a table for each language": case(
        "MarianMTModel",
        hf_families.BART
        | {
            "embedding": "model.encoder.embed_tokens",
            "decoder_embedding": "model.decoder.embed_tokens",
        },
        MARIAN_SIZES | {"share_encoder_decoder_embeddings": False},
        transformer_2017(**MARIAN, share_embeddings=False),
        WORDS,
    ),
}

HF_IMAGES = HF_SIZES | {
    "hidden_size": 30,
    "layer_norm_eps": EPS,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 2,
    "num_labels": 3,
}


def vision(pooling: str) -> VisionConfig:
    return VisionConfig(
        **SIZES,
        model_dim=30,
        norm=NORM,
        image_size=(8, 12),
        patch_size=(4, 3),
        channels=2,
        position=Learned(max_length=9),
        heads=(Classification(num_labels=3, pooling=pooling),),
    )


def mean_over_patches(model, arguments):
    """Their classifier on the mean of the patches, which theirs does not offer."""
    import torch
    from transformers.modeling_outputs import ImageClassifierOutput

    hidden = model.vit(arguments["pixel_values"]).last_hidden_state
    logits = model.classifier(hidden[:, 1:].mean(dim=1))
    loss = torch.nn.functional.cross_entropy(logits, arguments["labels"])
    return ImageClassifierOutput(loss=loss, logits=logits)


VIT = ("ViTForImageClassification", hf_families.VIT, HF_IMAGES)
OTHERS = {
    "ViT": case(*VIT, vision("first"), {"label": "logits"}),
    "ViT, mean": case(*VIT, vision("mean"), {"label": "logits"}, run=mean_over_patches),
    "GPT-2 SequenceClassification": case(
        "GPT2ForSequenceClassification",
        hf_families.GPT2_CLASSIFIER,
        {
            "vocab_size": VOCAB,
            "pad_token_id": PAD,
            "n_embd": 30,
            "n_head": 6,
            "n_layer": 3,
            "n_positions": 17,
            "layer_norm_epsilon": EPS,
            "num_labels": 3,
        },
        DecoderConfig(
            **SIZES | {"mlp_dim": 120},
            vocab_size=VOCAB,
            model_dim=30,
            position=Learned(max_length=17),
            norm=NORM,
            activation="gelu_tanh",
            gated=False,
            mlp_bias=True,
            attention_bias=True,
            attention_output_bias=True,
            heads=(Classification(num_labels=3, pooling="last", bias=False),),
        ),
        {"label": "logits"},
    ),
}
CASES = ENCODERS | ENCODER_DECODERS | OTHERS
# Some of each family, which are also run on batches without padding or a mask.
WITHOUT_MASK = (
    "BERT PreTraining",
    "RoBERTa QuestionAnswering",
    "T5",
    "BART",
    "GPT-2 SequenceClassification",
)


def real_tokens(padded: bool, length: int, decoder: bool = False) -> np.ndarray:
    """bool `[B, T]`: rows without padding, one padded on the left and one on the right."""
    valid = np.ones((ROWS, length), bool)
    if padded and decoder:
        valid[1, 4:] = valid[3, :2] = False
    elif padded:
        valid[2, :4] = valid[3, 7:] = False
    return valid


def batch_of(case: Case, padded: bool = True) -> dict[str, np.ndarray]:
    """What our model reads, with labels; with padding, or without and no word about it."""
    random = np.random.default_rng(0)
    decoder = isinstance(case.ours, EncoderDecoderConfig)
    source, target = real_tokens(padded, 11), real_tokens(padded, 7, decoder=True)
    if "rating" in case.scores:
        source[2] = True  # Their squared error has no weights, and they read the first place.

    def ids(valid):
        return np.where(valid, random.integers(PAD + 1, VOCAB, valid.shape), PAD)

    valid = target if decoder else source
    kinds = 3 if case.ours.heads[0].name == "tags" else VOCAB
    batch = {
        "inputs": ids(source),
        "segments": source.astype(np.int32),
        "decoder_inputs": ids(target),
        "decoder_segments": target.astype(np.int32),
        "token_types": random.integers(0, getattr(case.ours, "token_types", 0) or 3, source.shape),
        "task_types": random.integers(0, 4, source.shape),
        "images": random.normal(size=(ROWS, 8, 12, 2)).astype(np.float32),
        "targets": random.integers(0, kinds, valid.shape),
        "weights": (valid & (random.random(valid.shape) < 0.6)).astype(np.float32),
        "span": random.integers(0, 11, (ROWS, 2)),
        "span_weights": source.all(1).astype(np.float32),  # Theirs scores padding too.
    }
    if case.model_class.startswith("Roberta"):
        batch["positions"] = np.maximum(np.cumsum(source, axis=1) - 1, 0)
    # Theirs reads the first place of a row, whatever stands there; but the last token of a decoder.
    first = isinstance(case.ours, EncoderConfig | EncoderDecoderConfig)
    sentences = source[:, 0] if first else np.ones(ROWS, bool)
    for name, classes in {"label": 3, "next_sentence": 2, "sentence_order": 2}.items():
        batch[name] = random.integers(0, classes, ROWS)
        batch[f"{name}_weights"] = sentences.astype(np.float32)
    batch["rating"] = random.normal(size=ROWS).astype(np.float32)
    batch["rating_weights"] = np.ones(ROWS, np.float32)
    if not decoder:
        batch = {name: x for name, x in batch.items() if not name.startswith("decoder")}
    if not padded:
        batch = {name: x for name, x in batch.items() if not name.endswith("segments")}
    return batch


def their_arguments(case: Case, batch: dict) -> dict:
    """The same for their model."""
    import torch

    arguments = {
        ours: torch.tensor(batch[key])
        for key, ours in {
            "inputs": "input_ids",
            "segments": "attention_mask",
            "decoder_inputs": "decoder_input_ids",
            "decoder_segments": "decoder_attention_mask",
        }.items()
        if key in batch
    }
    if isinstance(case.ours, VisionConfig):
        arguments = {"pixel_values": torch.tensor(batch["images"]).permute(0, 3, 1, 2)}
    for key in getattr(case.ours, "kinds", ()):
        arguments[key.replace("types", "type_ids")] = torch.tensor(batch[key])
    for key, theirs in case.labels.items():
        weights = batch["weights" if key == "targets" else f"{key}_weights"]
        ignored = np.where(weights > 0, batch[key], -100).astype(batch[key].dtype)
        arguments[theirs] = torch.tensor(ignored)
    if "span" in case.scores:
        ignored = batch["inputs"].shape[1]
        span = np.where(batch["span_weights"][:, None] > 0, batch["span"], ignored)
        arguments["start_positions"], arguments["end_positions"] = torch.tensor(span).unbind(1)
    return arguments


def their_scores(case: Case, outputs) -> list:
    """Their outputs in the order and the shapes of our heads."""
    import torch

    if "span" in case.scores:
        return [torch.stack([outputs.start_logits, outputs.end_logits], dim=1)]
    if "rating" in case.scores:
        return [outputs.logits[:, 0]]
    return [outputs[name] for name in case.scores.values()]


def what_counts(case: Case, batch: dict) -> list[np.ndarray]:
    """Where each head's scores mean something, broadcastable to them."""
    decoder = isinstance(case.ours, EncoderDecoderConfig)
    real = batch.get("decoder_segments" if decoder else "segments", np.ones(1)) > 0

    def counts(head):
        if head in ("masked_language_model", "tags", "language_model"):
            return real[..., None]
        if head == "span":
            return real[:, None, :] if real.ndim > 1 else real
        weights = batch[f"{head}_weights"] > 0
        return weights if head == "rating" else weights[:, None]

    return [counts(head) for head in case.scores]
