"""Metrics of generated texts."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass

from jaxformer.models.heads import metrics


class TextMetric(abc.ABC):
    """A metric that compares texts with references; subclasses are frozen dataclasses."""

    @abc.abstractmethod
    def scores(self, texts: Sequence[str], references: Sequence[Sequence[str]]) -> dict[str, float]:
        """Returns the scores of texts."""


@dataclass(frozen=True)
class BLEU(TextMetric):
    """BLEU and chrF of translations, as sacrebleu computes them.

    References:
        Post 2018, https://arxiv.org/abs/1804.08771; Popović 2015, https://aclanthology.org/W15-3049
    """

    def scores(self, texts, references):
        return metrics.translation_scores(texts, _first(references))


@dataclass(frozen=True)
class ROUGE(TextMetric):
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of summaries, as rouge_score computes them.

    References:
        Lin 2004, https://aclanthology.org/W04-1013
    """

    stemmer: bool = True
    """Whether to compare the stems of English words (Porter), as published figures do."""

    def scores(self, texts, references):
        return metrics.summary_scores(texts, _first(references), stemmer=self.stemmer)


@dataclass(frozen=True)
class WER(TextMetric):
    """The word error rate of texts that should equal their references, such as transcripts.

    References:
        Morris et al. 2004, https://doi.org/10.21437/Interspeech.2004-668
    """

    def scores(self, texts, references):
        return metrics.error_scores(texts, _first(references))


@dataclass(frozen=True)
class AnswerMatch(TextMetric):
    """Exact match and F1 of answers to questions, as SQuAD defines them.

    References:
        Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250
    """

    def scores(self, texts, references):
        return metrics.answer_scores(texts, references)


def _first(references: Sequence[Sequence[str]]) -> list[str]:
    """The first reference of each text; empty if there is none."""
    return [next(iter(each), "") for each in references]
