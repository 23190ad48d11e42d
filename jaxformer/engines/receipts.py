"""Receipts: what an engine computes from an export, beside what jaxformer computes."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import Engine, LoadedModel, Prompt
from jaxformer.engines.reference import TEXT, ReferenceModel

GREEDY_TOKENS = 256
"""How many tokens a model writes for a receipt, if it has as many positions."""
MOST_PERPLEXITY = 1.02
"""The largest factor by which quantised weights may raise the perplexity."""


@dataclass(frozen=True)
class Receipt:
    """What one engine computes from an export."""

    engine: str
    version: str
    max_difference: float
    """The largest difference of a logit, or of a hidden state of a model without a head."""
    largest: float
    """The largest logit, or hidden state, that jaxformer computes."""
    greedy_tokens: int
    """How many tokens were written; 0 for a model that does not write text."""
    equal_greedy_tokens: int
    """How many of them were equal before the first that differed."""
    equal_tokens_of_text: bool | None
    """Whether the engine's tokenizer gives the same tokens; None if it has none."""
    bytes: int
    """The size of the export."""
    seconds: float
    """The time that the engine took to load the model and to compute all of it."""
    perplexity: Mapping[str, float] | None = None
    """The perplexity of "jaxformer" and of the "engine" on rows of validation data, if any."""
    limit: float = 0.0
    """The largest `max_difference` at which the two agree; 0 for weights of fewer bits."""

    @property
    def judged(self) -> bool:
        """Whether there is a bound: weights of fewer bits are judged by their perplexity alone."""
        return bool(self.limit or self.perplexity)

    @property
    def problems(self) -> list[str]:
        """What differs by more than rounding, in words; empty if both compute the same."""
        found = []
        if self.limit and not self.max_difference <= self.limit:
            found.append(f"outputs differ by {self.max_difference:.1e} of at most {self.limit:.0e}")
        if self.limit and self.equal_greedy_tokens < self.greedy_tokens:
            found.append(
                f"only {self.equal_greedy_tokens} of {self.greedy_tokens} greedy tokens are equal"
            )
        if self.equal_tokens_of_text is False:
            found.append("its tokenizer gives other tokens")
        pair = self.perplexity
        if pair and not pair["engine"] <= MOST_PERPLEXITY * pair["jaxformer"]:
            found.append(f"perplexity {pair['engine']:.2f} where it was {pair['jaxformer']:.2f}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Returns the receipt with whether the engine agrees; None: it was not judged."""
        agrees = not self.problems if self.judged or self.problems else None
        return asdict(self) | {"agrees": agrees}


def is_exact(description: Mapping[str, str]) -> bool:
    """Returns whether an export has its weights in float32, as its export.json says."""
    return "quantise" not in description and description.get("dtype", "float32") == "float32"


@dataclass(frozen=True)
class Answers:
    """What jaxformer computes for the prompts on which engines are compared."""

    asked: Prompt
    """The prompt that is continued."""
    greedy: Sequence[int]
    """The likeliest next tokens; none for a model that does not write text."""
    prompt: Prompt
    """The prompt whose outputs are compared: a decoder behind an encoder has what it wrote too."""
    outputs: np.ndarray
    """The logits `[T, V]`, or hidden states `[T, D]` of a body."""


def answers_of(reference: ReferenceModel) -> Answers:
    """Returns what a model computes in jaxformer, once for all engines."""
    asked, count = reference.prompt(), 0
    if reference.generates:
        room = reference.longest - max(len(asked.tokens), len(asked.decoder_tokens))
        count = min(GREEDY_TOKENS, room)
    expected = reference.greedy(asked, count) if count else []
    prompt = asked
    if asked.decoder_tokens:
        prompt = replace(asked, decoder_tokens=asked.decoder_tokens + tuple(expected[:-1]))
    return Answers(asked, expected, prompt, reference.outputs(prompt))


def measure(
    engine: Engine,
    folder: Path,
    description: Mapping[str, str],
    reference: ReferenceModel,
    answers: Answers,
    rows: Sequence[np.ndarray] = (),
) -> Receipt:
    """Runs an export in an engine that is installed, and compares it with jaxformer.

    `answers` are those of the reference, from `answers_of`, and `rows` are tokens of validation
    data, int `[T]` each, for the perplexity of a decoder.
    """
    prompt, right, count = answers.prompt, answers.outputs, len(answers.greedy)
    start = time.perf_counter()
    model = engine.load(folder, description)
    found = model.outputs(prompt)
    written = model.greedy(answers.asked, count) if count else []
    seconds = time.perf_counter() - start
    pair = None
    if rows and not prompt.decoder_tokens and reference.generates:
        pair = {"jaxformer": perplexity(reference, rows), "engine": perplexity(model, rows)}
    largest = float(np.max(np.abs(right)))
    return Receipt(
        engine=engine.name,
        version=engine.version,
        max_difference=largest_difference(found, right),
        largest=largest,
        greedy_tokens=count,
        equal_greedy_tokens=num_equal(written, answers.greedy),
        equal_tokens_of_text=_same_tokens(model, reference),
        bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        seconds=round(seconds, 3),
        perplexity=pair,
        limit=engine.tolerance * max(1.0, largest) if is_exact(description) else 0.0,
    )


def perplexity(model: LoadedModel, rows: Sequence[np.ndarray]) -> float:
    r"""Returns :math:`\exp` of the mean negative log-likelihood of the tokens of some rows."""
    losses = []
    for row in rows:
        logits = model.outputs(Prompt(tuple(int(token) for token in row)))[:-1].astype(np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        losses.append(-np.take_along_axis(log_probs, np.asarray(row)[1:, None], axis=-1))
    return float(np.exp(np.concatenate(losses).mean()))


def largest_difference(found: np.ndarray, right: np.ndarray) -> float:
    """Returns the largest difference of two arrays; inf for another shape, NaN or infinity."""
    found = np.asarray(found, np.float32)
    if found.shape != right.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.max(np.abs(found - right)))


def num_equal(found: Sequence[int], expected: Sequence[int]) -> int:
    """Returns how many tokens are equal before the first that differs."""
    pairs = zip(found, expected, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))


def _same_tokens(model: LoadedModel, reference: ReferenceModel) -> bool | None:
    ours, theirs = reference.tokenize(TEXT), model.tokenize(TEXT)
    return None if ours is None or theirs is None else list(theirs) == list(ours)
