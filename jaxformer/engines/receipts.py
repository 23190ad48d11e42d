"""Receipts: comparisons of an engine's results for an export with jaxformer's."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.engines.base import Engine, LoadedModel, Prompt
from jaxformer.engines.reference import TEXT, ReferenceModel

GREEDY_TOKENS = 256
"""Maximum number of generated tokens for a receipt."""
MOST_PERPLEXITY = 1.02
"""The maximum factor by which quantised weights may raise the perplexity."""


@dataclass(frozen=True)
class Receipt:
    """The results of an engine for an export."""

    engine: str
    version: str
    max_difference: float
    """The largest difference of logits, or of hidden states without a head."""
    largest: float
    """jaxformer's largest logit or hidden state."""
    greedy_tokens: int
    """Number of generated tokens; 0 for a model that does not generate text."""
    equal_greedy_tokens: int
    """Number of equal tokens before the first difference."""
    equal_tokens_of_text: bool | None
    """Whether the engine's tokenizer gives the same tokens; None if it has no tokenizer."""
    bytes: int
    """The size of the export in bytes."""
    seconds: float
    """The engine's time for loading the model and all computations."""
    perplexity: Mapping[str, float] | None = None
    """The perplexity of "jaxformer" and of the "engine" on validation data, if any."""
    limit: float = 0.0
    """The maximum accepted `max_difference`; 0 for weights of fewer bits."""

    @property
    def judged(self) -> bool:
        """Whether the result can be judged: weights of fewer bits require a perplexity."""
        return bool(self.limit or self.perplexity)

    @property
    def problems(self) -> list[str]:
        """Describes the differences beyond rounding; empty if the results agree."""
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
        """Returns the receipt as JSON; "agrees" is None if the engine was not judged."""
        agrees = not self.problems if self.judged or self.problems else None
        return asdict(self) | {"agrees": agrees}


def is_exact(description: Mapping[str, str]) -> bool:
    """Returns whether an export has float32 weights, according to its export.json."""
    return "quantise" not in description and description.get("dtype", "float32") == "float32"


@dataclass(frozen=True)
class Answers:
    """jaxformer's results for the prompts of comparisons."""

    asked: Prompt
    """The prompt to continue."""
    greedy: Sequence[int]
    """The greedy continuation; empty for a model that does not generate text."""
    prompt: Prompt
    """The prompt whose outputs are compared; an encoder-decoder's includes the continuation."""
    outputs: np.ndarray
    """The logits `[T, V]`, or hidden states `[T, D]` without a head."""


def answers_of(reference: ReferenceModel) -> Answers:
    """Computes a model's results in jaxformer, once for all engines."""
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
    """Runs an export in an installed engine, and compares it with jaxformer.

    `answers` come from `answers_of` the reference, and `rows` are tokens of validation data, int
    `[T]` each, for a decoder's perplexity.
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
    """Returns the number of equal tokens before the first difference."""
    pairs = zip(found, expected, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)))


def _same_tokens(model: LoadedModel, reference: ReferenceModel) -> bool | None:
    ours, theirs = reference.tokenize(TEXT), model.tokenize(TEXT)
    return None if ours is None or theirs is None else list(theirs) == list(ours)
