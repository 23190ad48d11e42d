"""The same batch for our model and transformers', and where their scores mean something."""

import numpy as np
from hf_case import PAD, ROWS, VOCAB, Case

from jaxformer.models import EncoderConfig, EncoderDecoderConfig, VisionConfig


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
    for key in getattr(case.ours, "type_sizes", ()):
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
