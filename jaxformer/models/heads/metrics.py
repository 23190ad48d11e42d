"""Task metrics from all predictions and references, computed by standard libraries.

Libraries are imported where they are used, since together they dominate import time.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from jaxformer.extras import optional_module

Batch = Mapping[str, np.ndarray]
Scores = dict[str, float]


def classification_scores(
    predictions: ArrayLike, references: ArrayLike, weights: ArrayLike, num_labels: int
) -> Scores:
    """Returns accuracy, Matthews correlation, and F1 (binary, or the mean over labels)."""
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
    """Returns "micro_f1", "macro_f1", "f1_<label>", and "exact_match" of rows; F1 of 0/0 is 0."""
    predictions, references, weights = _counted(predictions, references, weights)
    predicted, true = (np.asarray(x) > 0.5 for x in (predictions, references))
    exact = np.average((predicted == true).all(axis=1), weights=weights)
    both = weights @ (predicted & true)
    either = weights @ predicted + weights @ true
    each = 2 * both / np.maximum(either, np.finfo(float).tiny)
    return {
        "micro_f1": float(2 * both.sum() / max(either.sum(), np.finfo(float).tiny)),
        "macro_f1": float(each.mean()),
        "exact_match": float(exact),
        **{f"f1_{name}": float(value) for name, value in zip(labels, each, strict=True)},
    }


def regression_scores(predictions: ArrayLike, references: ArrayLike, weights: ArrayLike) -> Scores:
    """Returns "pearson" and "spearman": 0 for constant values, NaN for non-finite predictions."""
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
    """Returns recall at 1 of images by text and of texts by image in a batch, and their mean."""
    predictions, references, weights = _counted(predictions, references, weights)
    found = np.average(np.equal(predictions, references), axis=0, weights=weights)
    names = ("text_to_image_recall", "image_to_text_recall")
    recalls = dict(zip(names, map(float, found), strict=True))
    return recalls | {"accuracy": float(np.mean(found))}


def tag_scores(
    predictions: ArrayLike, references: ArrayLike, weights: ArrayLike, tags: Sequence[str]
) -> Scores:
    """Returns the accuracy of tags and, for entity tags (IOB, IOBES), entity F1."""
    from seqeval import metrics as entity_metrics
    from sklearn import metrics

    predictions, references, weights = map(np.asarray, (predictions, references, weights))
    counted = weights > 0
    found = predictions[counted]
    wanted = references[counted]
    scores = {"accuracy": float(metrics.accuracy_score(wanted, found))}
    if not all(re.fullmatch(r"O|[BIES]-.+", tag) for tag in tags):
        macro = metrics.f1_score(wanted, found, average="macro", zero_division=0.0)
        return scores | {"macro_f1": float(macro)}
    sides = [
        [[tags[number] for number in row[real]] for row, real in zip(side, counted, strict=True)]
        for side in (references, predictions)
    ]
    return scores | {
        f"entity_{name}": float(getattr(entity_metrics, f"{name}_score")(*sides, zero_division=0))
        for name in ("f1", "precision", "recall")
    }


def answer_scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> Scores:
    r"""Returns exact match and token F1 of answers, as SQuAD defines them.

    Answers are compared in lower case without punctuation, articles and extra whitespace.

    .. math:: F_1 = \frac{2 P R}{P + R}, \quad
        P = \frac{|p \cap r|}{|p|}, \quad R = \frac{|p \cap r|}{|r|}

    over the words of prediction p and reference r as multisets; the best of the references counts.
    A missing answer is an empty text, and missing references are an empty list.

    References:
        Rajpurkar et al. 2016, SQuAD, https://arxiv.org/abs/1606.05250
    """
    exact, f1 = [], []
    for prediction, answers in zip(predictions, references, strict=True):
        words = _normalized_words(prediction)
        options = [_normalized_words(answer) for answer in answers] or [[]]
        exact.append(max(words == option for option in options))
        f1.append(max(_overlap(words, option) for option in options))
    return {"exact_match": float(np.mean(exact)), "f1": float(np.mean(f1))}


def translation_scores(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    """Returns BLEU and chrF of a corpus, between 0 and 100, with sacrebleu's default settings."""
    import sacrebleu

    predictions = list(predictions)
    references = [list(references)]
    return {
        "bleu": sacrebleu.corpus_bleu(predictions, references).score,
        "chrf": sacrebleu.corpus_chrf(predictions, references).score,
    }


def error_scores(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    r"""Returns the word error rate of a corpus.

    .. math:: \mathrm{WER} = \frac{\sum_i d(p_i, r_i)}{\sum_i |r_i|}

    d is the edit distance in words: the minimum number of substitutions, deletions and insertions.
    Words are separated by whitespace and compared unchanged. The rate may exceed 1 if predictions
    have many more words.
    """
    words = ([text.split() for text in side] for side in (predictions, references))
    return {"wer": _error_rate(*words)}


def transcript_scores(predictions: Sequence[str], references: Sequence[str]) -> Scores:
    r"""Returns the word and the character error rate of a corpus.

    .. math:: \mathrm{CER} = \frac{\sum_i d(p_i, r_i)}{\sum_i |r_i|}

    d is the edit distance in characters, blanks included; for words see `error_scores`.
    """
    return error_scores(predictions, references) | {"cer": _error_rate(predictions, references)}


def summary_scores(
    predictions: Sequence[str], references: Sequence[str], stemmer: bool = True
) -> Scores:
    """Returns the means of rouge_score's F-measures; rougeLsum treats each line as a sentence."""
    names = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    scorer = optional_module("rouge_score.rouge_scorer", "ROUGE").RougeScorer(names, stemmer)
    rows = [scorer.score(*pair) for pair in zip(references, predictions, strict=True)]
    return {name: float(np.mean([row[name].fmeasure for row in rows])) for name in names}


def most_frequent(
    train: Sequence[Batch], validation: Sequence[Batch], target: str, weight: str
) -> Scores:
    """Returns the loss and accuracy of predicting the class frequencies of the training rows."""
    classes, weights = flat(train, target, weight)
    references, reference_weights = flat(validation, target, weight)
    size = int(max(classes.max(), references.max())) + 1
    # Add-one smoothing, so that unseen labels are not impossible.
    counts = np.bincount(classes, weights, size) + 1.0
    true = np.bincount(references, reference_weights, size)
    loss = -np.sum(true * np.log(counts / counts.sum())) / true.sum()
    return {"loss": float(loss), "accuracy": float(true[counts.argmax()] / true.sum())}


def rows_of(batches: Iterable[Batch], value: str, weight: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values of all rows, [rows, ...], and the rows' weights."""
    pairs = [(batch[value], batch[weight]) for batch in batches]
    return tuple(np.concatenate(side) for side in zip(*pairs, strict=True))


def flat(batches: Iterable[Batch], value: str, weight: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns all values and their weights as flat arrays."""
    pairs = [(batch[value].ravel(), batch[weight].ravel()) for batch in batches]
    return tuple(np.concatenate(side) for side in zip(*pairs, strict=True))


def _counted(predictions, references, weights) -> tuple[np.ndarray, ...]:
    """Returns the rows with positive weight."""
    predictions, references, weights = map(np.asarray, (predictions, references, weights))
    counted = weights > 0
    return predictions[counted], references[counted], weights[counted]


def _matthews(references, predictions, weights) -> float:
    from sklearn import metrics

    with warnings.catch_warnings():
        # It is 0 if only one label occurs; scikit-learn's warning about that is not useful.
        warnings.simplefilter("ignore")
        return metrics.matthews_corrcoef(references, predictions, sample_weight=weights)


def _error_rate(predictions: Sequence[Sequence[str]], references: Sequence[Sequence[str]]) -> float:
    """Returns the edits of all texts, in words or characters, per word or character of the
    references.
    """
    errors = sum(_edits(*pair) for pair in zip(predictions, references, strict=True))
    return errors / max(sum(map(len, references)), 1)


def _edits(words: Sequence[str], reference: Sequence[str]) -> int:
    """Returns the edit distance between two texts."""
    numbers = {word: number for number, word in enumerate({*words, *reference})}
    across = np.array([numbers[w] for w in reference], int)
    columns = np.arange(len(reference) + 1)
    row = columns
    for count, word in enumerate(words, start=1):
        best = np.minimum(row[:-1] + (across != numbers[word]), row[1:] + 1)
        # Deletions: one more for each column to the right.
        row = np.minimum.accumulate(np.concatenate([[count], best]) - columns) + columns
    return int(row[-1])


def _normalized_words(answer: str) -> list[str]:
    plain = "".join(char for char in answer.lower() if char not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _overlap(prediction: list[str], reference: list[str]) -> float:
    if not prediction or not reference:
        return float(prediction == reference)
    common = (Counter(prediction) & Counter(reference)).total()
    return 2 * common / (len(prediction) + len(reference))
