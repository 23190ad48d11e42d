"""The metrics of a task from all predictions and references, computed by the field's libraries.

Each is imported where it is used: together they take longer than all else that a run imports.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxformer.extras import optional_module

Scores = dict[str, float]


def classification_scores(
    predictions: ArrayLike, references: ArrayLike, weights: ArrayLike, num_labels: int
) -> Scores:
    """Returns accuracy, F1 and Matthews' correlation coefficient.

    Args:
        predictions: int [rows], the label that scores highest.
        references: int [rows].
        weights: float [rows]; rows of weight 0 do not count.
        num_labels: The number of labels. With two, "f1" is that of label 1 (as in GLUE);
            otherwise it is "macro_f1", the mean over the labels that occur.

    Returns:
        "accuracy", "f1" or "macro_f1", and "matthews".
    """
    from sklearn import metrics

    predictions, references, weights = _counted(predictions, references, weights)
    kind, average = ("f1", "binary") if num_labels == 2 else ("macro_f1", "macro")
    options = {"sample_weight": weights, "zero_division": 0.0}
    return {
        "accuracy": float(metrics.accuracy_score(references, predictions, sample_weight=weights)),
        kind: float(metrics.f1_score(references, predictions, average=average, **options)),
        "matthews": float(_matthews(references, predictions, weights)),
    }


def multi_label_scores(
    predictions: ArrayLike, references: ArrayLike, weights: ArrayLike, labels: Sequence[str]
) -> Scores:
    """Returns F1 over all labels of all rows, its mean over the labels, and that of each.

    Args:
        predictions: int [rows, labels], 1 for the labels that are predicted.
        references: int [rows, labels].
        weights: float [rows]; rows of weight 0 do not count.
        labels: The names of the labels.

    Returns:
        "micro_f1", "macro_f1", "exact_match", the share of rows all of whose labels are right, and
        "f1_<label>" for each label. F1 of a label that no row has and none is given is 0.
    """
    predictions, references, weights = _counted(predictions, references, weights)
    predicted, true = (np.asarray(x) > 0.5 for x in (predictions, references))
    exact = np.average((predicted == true).all(axis=1), weights=weights)
    both, either = weights @ (predicted & true), weights @ predicted + weights @ true
    each = 2 * both / np.maximum(either, np.finfo(float).tiny)
    return {
        "micro_f1": float(2 * both.sum() / max(either.sum(), np.finfo(float).tiny)),
        "macro_f1": float(each.mean()),
        "exact_match": float(exact),
        **{f"f1_{name}": float(value) for name, value in zip(labels, each, strict=True)},
    }


def regression_scores(predictions: ArrayLike, references: ArrayLike, weights: ArrayLike) -> Scores:
    """Returns Pearson's and Spearman's correlation coefficients.

    Args:
        predictions: float [rows].
        references: float [rows].
        weights: float [rows]; rows of weight 0 do not count, all others count once.

    Returns:
        "pearson" and "spearman"; 0 where predictions or references are all the same, and NaN where
        one is not finite.
    """
    from scipy import stats

    predictions, references, _ = _counted(predictions, references, weights)
    predictions, references = (np.asarray(x, np.float64) for x in (predictions, references))
    if not np.isfinite(predictions).all():
        return {"pearson": math.nan, "spearman": math.nan}
    if len(predictions) < 2 or not np.ptp(predictions) or not np.ptp(references):
        return {"pearson": 0.0, "spearman": 0.0}
    return {
        "pearson": float(stats.pearsonr(predictions, references).statistic),
        "spearman": float(stats.spearmanr(predictions, references).statistic),
    }


def retrieval_scores(predictions: ArrayLike, references: ArrayLike, weights: ArrayLike) -> Scores:
    """Returns how often the right image is first for a text, and the right text for an image.

    The candidates are those of the same batch: the larger it is, the harder is the task.

    Args:
        predictions: int [rows, 2], the image of each text and the text of each image.
        references: int [rows, 2].
        weights: float [rows]; rows of weight 0 do not count.

    Returns:
        "text_to_image_recall", "image_to_text_recall", and their mean, "accuracy".
    """
    predictions, references, weights = _counted(predictions, references, weights)
    found = np.average(np.equal(predictions, references), axis=0, weights=weights)
    names = ("text_to_image_recall", "image_to_text_recall")
    recalls = dict(zip(names, map(float, found), strict=True))
    return recalls | {"accuracy": float(np.mean(found))}


def tag_scores(
    predictions: ArrayLike, references: ArrayLike, weights: ArrayLike, tags: Sequence[str]
) -> Scores:
    """Returns the accuracy of tags, and the F1 of whole entities where tags mark such.

    Args:
        predictions: int [rows, T], the tag that scores highest.
        references: int [rows, T].
        weights: float [rows, T]; a place of weight 0 holds no tag.
        tags: The names of the tags. If all are "O" or begin with B-, I-, E- or S-, they mark
            entities, which count as found if type, beginning and end are right.

    Returns:
        "accuracy", and "entity_f1", "entity_precision" and "entity_recall", or "macro_f1" where
        the tags mark no entities.
    """
    from seqeval import metrics as entity_metrics
    from sklearn import metrics

    predictions, references, weights = map(np.asarray, (predictions, references, weights))
    counted = weights > 0
    found, wanted = predictions[counted], references[counted]
    scores = {"accuracy": float(metrics.accuracy_score(wanted, found))}
    if not all(re.fullmatch(r"O|[BIES]-.+", tag) for tag in tags):
        macro = metrics.f1_score(wanted, found, average="macro", zero_division=0.0)
        return scores | {"macro_f1": float(macro)}
    sides = [
        [
            [tags[number] for number in row[places]]
            for row, places in zip(side, counted, strict=True)
        ]
        for side in (references, predictions)
    ]
    return scores | {
        f"entity_{name}": float(getattr(entity_metrics, f"{name}_score")(*sides, zero_division=0))
        for name in ("f1", "precision", "recall")
    }


def answer_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    r"""Returns exact match and token F1 of answers, as SQuAD defines them.

    Answers are compared in lower case without punctuation, articles and extra blanks.

    .. math:: F_1 = \frac{2 P R}{P + R}, \quad
        P = \frac{|p \cap r|}{|p|}, \quad R = \frac{|p \cap r|}{|r|}

    over the words of prediction p and reference r as multisets; the best of the references counts.

    Args:
        predictions: The answer to each question; empty: there is none.
        references: The right answers to each question; none: there is no answer.

    Returns:
        "exact_match" and "f1", means between 0 and 1.

    References:
        Rajpurkar et al. 2016, SQuAD, https://arxiv.org/abs/1606.05250
    """
    exact, f1 = [], []
    for prediction, answers in zip(predictions, references, strict=True):
        words = _answer_words(prediction)
        options = [_answer_words(answer) for answer in answers] or [[]]
        exact.append(max(words == option for option in options))
        f1.append(max(_overlap(words, option) for option in options))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def translation_scores(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    """Returns BLEU and chrF of a corpus, with sacrebleu's default settings.

    Args:
        predictions: The translations.
        references: A reference for each.

    Returns:
        "bleu" and "chrf", between 0 and 100.

    References:
        Post 2018, A Call for Clarity in Reporting BLEU Scores, https://arxiv.org/abs/1804.08771;
        Popović 2015, chrF, https://aclanthology.org/W15-3049
    """
    import sacrebleu

    predictions, references = list(predictions), [list(references)]
    return {
        "bleu": sacrebleu.corpus_bleu(predictions, references).score,
        "chrf": sacrebleu.corpus_chrf(predictions, references).score,
    }


def error_scores(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    r"""Returns the word error rate of a corpus.

    .. math:: \mathrm{WER} = \frac{\sum_i d(p_i, r_i)}{\sum_i |r_i|}

    d is the fewest words that are replaced, left out or added to make one text of the other. Words
    are what stands between blanks, as they are.

    Args:
        predictions: The texts.
        references: A reference for each.

    Returns:
        "wer", 0 where all are equal; above 1 where the predictions have many more words.
    """
    pairs = [(p.split(), r.split()) for p, r in zip(predictions, references, strict=True)]
    errors, words = sum(_edits(*pair) for pair in pairs), sum(len(pair[1]) for pair in pairs)
    return {"wer": errors / max(words, 1)}


def summary_scores(
    predictions: Sequence[str], references: Sequence[str], stemmer: bool = True
) -> Scores:
    """Returns ROUGE F-measures of summaries, the means of what rouge_score gives for each.

    Args:
        predictions: The summaries.
        references: A reference for each. "rougeLsum" takes each line of a text as a sentence.
        stemmer: Whether words of more than three letters are compared by their stems.

    Returns:
        "rouge1", "rouge2", "rougeL" and "rougeLsum", between 0 and 1.

    References:
        Lin 2004, ROUGE: A Package for Automatic Evaluation of Summaries,
        https://aclanthology.org/W04-1013
    """
    names = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    scorer = optional_module("rouge_score.rouge_scorer", "ROUGE").RougeScorer(names, stemmer)
    rows = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
    return {name: float(np.mean([row[name].fmeasure for row in rows])) for name in names}


def _counted(predictions, references, weights) -> tuple[np.ndarray, ...]:
    """The rows whose weight is positive."""
    predictions, references, weights = map(np.asarray, (predictions, references, weights))
    counted = weights > 0
    return predictions[counted], references[counted], weights[counted]


def _matthews(references, predictions, weights) -> float:
    from sklearn import metrics

    with warnings.catch_warnings():
        # It is 0 where only one label occurs, which is no reason to warn.
        warnings.simplefilter("ignore")
        return metrics.matthews_corrcoef(references, predictions, sample_weight=weights)


def _edits(words: Sequence[str], reference: Sequence[str]) -> int:
    """The fewest replaced, missing and additional words between two texts."""
    numbers = {word: number for number, word in enumerate({*words, *reference})}
    across, places = np.array([numbers[w] for w in reference], int), np.arange(len(reference) + 1)
    row = places
    for count, word in enumerate(words, start=1):
        best = np.minimum(row[:-1] + (across != numbers[word]), row[1:] + 1)
        # Words that are missing: one more for each place to the right.
        row = np.minimum.accumulate(np.concatenate([[count], best]) - places) + places
    return int(row[-1])


def _answer_words(answer: str) -> list[str]:
    plain = "".join(char for char in answer.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _overlap(prediction: list[str], reference: list[str]) -> float:
    if not prediction or not reference:
        return float(prediction == reference)
    common = (Counter(prediction) & Counter(reference)).total()
    return 2 * common / (len(prediction) + len(reference))
