"""Answers to questions: spans of a context."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.models.heads.base import number
from jaxformer.models.heads.span import Span, best_spans
from jaxformer.pretrained.prediction.predictor import Prediction, Predictor, Subject
from jaxformer.pretrained.prediction.reader import Window


class Answer(NamedTuple):
    """A span of a window and its score; no span is the score of having no answer."""

    logit: float
    """The sum of the scores of both ends, for comparing the windows of a question."""
    probability: float
    """The product of the probabilities of both ends within the window."""
    span: tuple[int, int] | None = None
    """The start and end of the answer in the context; None for no answer."""


class AnswerPredictor(Predictor):
    """Predicts the span of a context that answers a question, its probability and its position.

    The answer is the best-scoring span of all windows of a question. It is empty if in every window
    having no answer, the span of the first token, has a higher score.

    References:
        Devlin et al., BERT, https://arxiv.org/abs/1810.04805, section 4.3.
    """

    def __init__(self, subject: Subject, head: Span, null: bool = True):
        super().__init__(subject._replace(text=subject.text or ("question", "context")))
        self._longest, self._null = head.longest, null
        self._compute = self._batches(self._function)

    def _function(self, model, arrays):
        arrays = dict(arrays)
        context = arrays.pop("context")
        first = arrays.pop("first")
        scores = self.reader.scores(model, arrays)
        counted = (context | first)[:, None, :]
        total = jnp.sum(jax.nn.logsumexp(jnp.where(counted, scores, -1e9), axis=-1), axis=-1)
        nothing = jnp.sum(jnp.where(first[:, None, :], scores, 0.0), axis=(1, 2))
        spans, best = best_spans(jnp.where(context[:, None, :], scores, -1e9), self._longest)
        return spans, best, jnp.exp(best - total), nothing, jnp.exp(nothing - total)

    def _rows(self, records):
        windows: list[list[Window]] = []
        texts = self._texts(records)
        for record, (question, context) in zip(records, texts, strict=True):
            windows.append(self.reader.windows(record.where, question, context))
            self.cut += windows[-1][0].tokens.cut
        flat = [window for own in windows for window in own]
        sizes = [len(window.tokens.ids) for window in flat]
        found = iter(self._compute(flat, sizes, self._arrays, max(sizes)))
        return [
            self._row(context, [self._answers(window, *next(found)) for window in own])
            for (_, context), own in zip(texts, windows, strict=True)
        ]

    def _arrays(self, windows: Sequence[Window], length: int) -> dict[str, np.ndarray]:
        arrays = self.reader.arrays([window.tokens for window in windows], length)
        context = [(window.characters[:, 0] >= 0).astype(np.int32) for window in windows]
        first = [(np.arange(len(inside)) == 0).astype(np.int32) for inside in context]
        return arrays | {
            "context": self.reader.stacked(context, length, 0) > 0,
            "first": self.reader.stacked(first, length, 0) > 0,
        }

    def _answers(self, window: Window, found: tuple, length: int) -> tuple[Answer, Answer]:
        """Returns the best span of a window, and the score of having no answer."""
        span, best, probability, nothing, of_nothing = found
        ends = span - self.reader.token_slice(len(window.tokens.ids), length).start
        answer = int(window.characters[ends[0], 0]), int(window.characters[ends[1], 1])
        return Answer(best, probability, answer), Answer(nothing, of_nothing)

    def _row(self, context: str, answers: Sequence[tuple[Answer, Answer]]) -> Prediction:
        best = max((answer for answer, _ in answers), key=lambda answer: answer.logit)
        least = min((nothing for _, nothing in answers), key=lambda answer: answer.logit)
        chosen = least if self._null and not best.logit > least.logit else best
        start, end = chosen.span or (None, None)
        text = "" if start is None else context[start:end]
        return {"answer": text, "score": number(chosen.probability), "start": start, "end": end}
