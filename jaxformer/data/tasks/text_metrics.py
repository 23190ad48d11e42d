"""What texts that a model writes are measured by; `training.evaluation` computes it."""

from dataclasses import dataclass


class TextMetric:
    """A measure of texts next to their references; subclasses are frozen dataclasses."""


@dataclass(frozen=True)
class BLEU(TextMetric):
    """BLEU and chrF of translations, as sacrebleu computes them.

    References:
        Post 2018, https://arxiv.org/abs/1804.08771
    """


@dataclass(frozen=True)
class ROUGE(TextMetric):
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum of summaries, as rouge_score computes them.

    References:
        Lin 2004, https://aclanthology.org/W04-1013
    """

    stemmer: bool = True
    """Compare English words by their stems (Porter), as published figures do."""


@dataclass(frozen=True)
class WER(TextMetric):
    """The word error rate of texts that should be as their references are, such as transcripts.

    References:
        Morris et al. 2004, https://doi.org/10.21437/Interspeech.2004-668
    """


@dataclass(frozen=True)
class AnswerMatch(TextMetric):
    """Exact match and F1 of answers to questions, as SQuAD defines them.

    References:
        Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250
    """
