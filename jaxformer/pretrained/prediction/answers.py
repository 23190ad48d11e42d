"""Answers to questions: spans of a context."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.models.heads.labels import best_spans
from jaxformer.pretrained.prediction.predictor import Predictor, Row, Subject, number
from jaxformer.pretrained.prediction.reader import Window


class AnswerPredictor(Predictor):
    """The span of a context that answers a question, its probability and its place.

    Of a question's windows the one whose span is the most probable answers. The answer is empty
    where having none, the span of the first token alone, is more probable in every window.

    Args:
        subject: The model.
        longest: The most tokens of an answer.
        null: Whether a question may have no answer.

    References:
        Rajpurkar et al. 2018, SQuAD 2.0, https://arxiv.org/abs/1806.03822
    """

    def __init__(self, subject: Subject, longest: int, null: bool = True):
        super().__init__(subject)
        self._longest, self._null = longest, null
        self._compute = self._batches(self._function)

    def _function(self, model, arrays):
        arrays = dict(arrays)
        context, first = arrays.pop("context"), arrays.pop("first")
        scores = self.reader.scores(model, arrays)
        counted = (context | first)[:, None, :]
        log_p = jax.nn.log_softmax(jnp.where(counted, scores, -1e9), axis=-1)
        nothing = jnp.sum(jnp.where(first[:, None, :], log_p, 0.0), axis=(1, 2))
        spans, best = best_spans(jnp.where(context[:, None, :], log_p, -1e9), self._longest)
        return spans, jnp.exp(best), jnp.exp(nothing)

    @property
    def _asked(self) -> tuple[str, ...]:
        return self.subject.text or ("question", "context")

    def _texts(self, records):
        return [tuple(record.text(column) for column in self._asked) for record in records]

    def _rows(self, records):
        asked = self._asked
        found, windows, owners = [], [], []
        for owner, record in enumerate(records):
            own = self.reader.windows(record.where, *(record.text(column) for column in asked))
            self.cut += own[0].tokens.cut
            windows += own
            owners += [owner] * len(own)
        sizes = [len(window.tokens.ids) for window in windows]
        found = self._compute(windows, sizes, self._arrays, max(sizes))
        best: list[tuple] = [(-1.0, 1.0, None)] * len(records)
        for owner, window, ((span, score, nothing), length) in zip(
            owners, windows, found, strict=True
        ):
            places = span - self.reader.own_places(len(window.tokens.ids), length).start
            before, least, kept = best[owner]
            where = window.characters[places[0], 0], window.characters[places[1], 1]
            if score > before:
                before, kept = score, where
            best[owner] = before, min(least, nothing), kept
        return [
            self._row(record.text(asked[1]), *one)
            for record, one in zip(records, best, strict=True)
        ]

    def _arrays(self, windows: Sequence[Window], length: int) -> dict[str, np.ndarray]:
        arrays = self.reader.arrays([window.tokens for window in windows], length)
        context = [(window.characters[:, 0] >= 0).astype(np.int32) for window in windows]
        first = [(np.arange(len(inside)) == 0).astype(np.int32) for inside in context]
        return arrays | {
            "context": self.reader.stacked(context, length, 0) > 0,
            "first": self.reader.stacked(first, length, 0) > 0,
        }

    def _row(self, context: str, score: float, nothing: float, where: tuple[int, int]) -> Row:
        if self._null and nothing > score:
            return {"answer": "", "score": number(nothing), "start": None, "end": None}
        start, end = map(int, where)
        return {"answer": context[start:end], "score": number(score), "start": start, "end": end}
