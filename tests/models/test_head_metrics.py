import functools
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxformer.models import Classification, LanguageModel, Regression, Span
from jaxformer.models.heads.metrics import (
    answer_scores,
    classification_scores,
    error_scores,
    regression_scores,
    summary_scores,
    tag_scores,
    translation_scores,
)

labels = st.integers(2, 4).flatmap(
    lambda k: st.tuples(
        st.just(k),
        st.lists(st.tuples(*[st.integers(0, k - 1)] * 2), min_size=1, max_size=40),
    )
)


def pairs_of(rows):
    return tuple(np.array(side) for side in zip(*rows, strict=True))


@given(labels)
def test_classification_from_the_definitions(case):
    num_labels, rows = case
    predictions, references = pairs_of(rows)
    scores = classification_scores(predictions, references, np.ones(len(rows)), num_labels)
    assert scores["accuracy"] == pytest.approx((predictions == references).mean())

    def f1(label):
        hits = ((predictions == label) & (references == label)).sum()
        total = (predictions == label).sum() + (references == label).sum()
        return 2 * hits / total if total else 0.0

    if num_labels == 2:
        assert scores["f1"] == pytest.approx(f1(1))
    else:
        occurring = sorted({*predictions.tolist(), *references.tolist()})
        assert scores["macro_f1"] == pytest.approx(np.mean([f1(label) for label in occurring]))
    # Matthews' coefficient is the correlation of one-hot vectors.
    one_hot = [
        np.eye(num_labels)[side] - np.eye(num_labels)[side].mean(0) for side in pairs_of(rows)
    ]
    spread = np.sqrt((one_hot[0] ** 2).sum() * (one_hot[1] ** 2).sum())
    expected = (one_hot[0] * one_hot[1]).sum() / spread if spread > 1e-9 else 0.0
    assert scores["matthews"] == pytest.approx(expected, abs=1e-9)


@given(labels)
def test_rows_of_no_weight_do_not_count(case):
    num_labels, rows = case
    predictions, references = pairs_of(rows)
    plain = classification_scores(predictions, references, np.ones(len(rows)), num_labels)
    weights = np.array([1.0] * len(rows) + [0.0] * 3)
    more = (np.append(predictions, [0, 1, 0]), np.append(references, [1, 0, 0]))
    assert classification_scores(*more, weights, num_labels) == pytest.approx(plain)


@given(st.integers(0, 2**32), st.integers(3, 50))
def test_correlations_from_the_definitions(seed, size):
    rng = np.random.default_rng(seed)
    predictions, references = rng.normal(size=(2, size))
    scores = regression_scores(predictions, references, np.ones(size))
    assert scores["pearson"] == pytest.approx(np.corrcoef(predictions, references)[0, 1])
    ranks = [np.argsort(np.argsort(side)) for side in (predictions, references)]
    assert scores["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1])


def test_a_constant_prediction_correlates_with_nothing():
    assert regression_scores([1, 1, 1], [1, 2, 3], [1, 1, 1]) == {"pearson": 0.0, "spearman": 0.0}
    assert regression_scores([1], [1], [1]) == {"pearson": 0.0, "spearman": 0.0}


def test_numbers_that_are_not_finite_correlate_with_nothing_known():
    for broken in (np.nan, np.inf):
        scores = regression_scores([1, broken, 3], [1, 2, 3], [1, 1, 1])
        assert all(np.isnan(value) for value in scores.values())
    # What does not count may be anything.
    assert regression_scores([1, np.nan, 3], [1, 2, 3], [1, 0, 1])["pearson"] == pytest.approx(1)


TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")


def test_entities_count_as_a_whole():
    #             Peter  Black  of   New    York    pad
    references = [[1, 3, 4, 0, 2, 0], [4, 4, 4, 4, 0, 0]]
    predictions = [[1, 3, 4, 0, 4, 0], [4, 4, 4, 4, 0, 1]]
    weights = [[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 0]]
    scores = tag_scores(predictions, references, weights, TAGS)
    assert scores["accuracy"] == pytest.approx(9 / 10)
    # Three entities: the person and the second row's place are found, New York only in part.
    assert scores["entity_precision"] == pytest.approx(2 / 3)
    assert scores["entity_recall"] == pytest.approx(2 / 3)
    assert scores["entity_f1"] == pytest.approx(2 / 3)


def test_tags_without_entities_have_no_entity_scores():
    scores = tag_scores([[0, 1, 1]], [[0, 1, 0]], [[1, 1, 1]], ("name", "number"))
    assert scores == pytest.approx({"accuracy": 2 / 3, "macro_f1": 2 / 3})


words = st.lists(st.sampled_from(["the", "cat", "sat", "mat", "Mat!", "on"]), max_size=6)


@given(words, st.lists(words, min_size=1, max_size=3))
def test_answers_from_squads_definitions(prediction, references):
    scores = answer_scores([" ".join(prediction)], [[" ".join(r) for r in references]])

    def plain(answer):
        return [word.lower().strip("!") for word in answer if word != "the"]

    def f1(reference):
        common = sum((Counter(plain(prediction)) & Counter(plain(reference))).values())
        if not plain(prediction) or not plain(reference):
            return float(plain(prediction) == plain(reference))
        if common == 0:
            return 0.0
        precision, recall = common / len(plain(prediction)), common / len(plain(reference))
        return 2 * precision * recall / (precision + recall)

    assert scores["exact_match"] == any(plain(prediction) == plain(r) for r in references)
    assert scores["f1"] == pytest.approx(max(map(f1, references)))


def test_a_question_without_an_answer():
    assert answer_scores(["", "yes"], [[], []]) == {"exact_match": 0.5, "f1": 0.5}


def test_bleu_is_that_of_sacrebleus_command(tmp_path):
    rng = np.random.default_rng(0)
    vocabulary = ["der", "Hund", "lief,", "die", "Straße", "entlang.", "(schnell)"]
    references = [" ".join(rng.choice(vocabulary, 9)) for _ in range(20)]
    predictions = [
        " ".join(word if rng.random() < 0.8 else "Katze" for word in line.split())
        for line in references
    ]
    (tmp_path / "ref").write_text("\n".join(references) + "\n", encoding="utf-8")
    (tmp_path / "hyp").write_text("\n".join(predictions) + "\n", encoding="utf-8")
    scores = translation_scores(predictions, references)
    for metric, name in (("bleu", "bleu"), ("chrf", "chrf")):
        command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "-i"]
        command += [str(tmp_path / "hyp"), "-m", metric, "-b", "-w", "8"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert scores[name] == pytest.approx(float(printed), abs=1e-7)
        assert 5 < scores[name] < 95


@given(st.data())
def test_the_word_error_rate_counts_the_fewest_edits(data):
    words = st.lists(st.sampled_from("abc"), max_size=6)
    rows = data.draw(st.lists(st.tuples(words, words), min_size=1, max_size=4))

    @functools.cache
    def edits(one, other):
        if not one or not other:
            return len(one) + len(other)
        same = edits(one[1:], other[1:]) + (one[0] != other[0])
        return min(same, edits(one[1:], other) + 1, edits(one, other[1:]) + 1)

    texts = [[" ".join(row[side]) for row in rows] for side in (0, 1)]
    total = sum(edits(tuple(one), tuple(other)) for one, other in rows)
    count = sum(len(other) for _, other in rows)
    assert error_scores(*texts)["wer"] == pytest.approx(total / max(count, 1))


def test_a_word_error_rate_by_hand():
    assert error_scores(["the cat sat", "x"], ["the cat  sat down", "x"])["wer"] == 1 / 5


def test_a_perfect_translation():
    lines = ["eins zwei drei vier fünf"]
    assert translation_scores(lines, lines) == pytest.approx({"bleu": 100.0, "chrf": 100.0})


WORDS = ("the", "cats", "sat,", "on", "Mats", "running", "fairly")
SENTENCES = st.lists(st.sampled_from(WORDS), max_size=7)
SUMMARIES = st.lists(SENTENCES, min_size=1, max_size=3)


def common_subsequence(first, second):
    table = np.zeros((len(first) + 1, len(second) + 1), int)
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            longest = max(table[i, j + 1], table[i + 1, j])
            table[i + 1, j + 1] = table[i, j] + 1 if a == b else longest
    return table[-1, -1]


@given(st.lists(st.tuples(SUMMARIES, SUMMARIES), min_size=1, max_size=3))
def test_rouge_from_its_definitions(cases):
    texts = [["\n".join(map(" ".join, side)) for side in case] for case in cases]
    scores = summary_scores(*zip(*texts, strict=True), stemmer=False)

    def f_measure(hits, *sizes):
        return 2 * hits / sum(sizes) if hits else 0.0

    expected = {"rouge1": [], "rouge2": [], "rougeL": []}
    for case in cases:
        words = [[word.lower().strip(",") for line in side for word in line] for side in case]
        for n in (1, 2):
            grams = [Counter(zip(*(side[i:] for i in range(n)), strict=False)) for side in words]
            sizes = [gram.total() for gram in grams]
            expected[f"rouge{n}"].append(f_measure((grams[0] & grams[1]).total(), *sizes))
        expected["rougeL"].append(f_measure(common_subsequence(*words), *map(len, words)))
    for name, values in expected.items():
        assert scores[name] == pytest.approx(np.mean(values)), name


def test_rouge_of_lines_and_stems():
    # The sentences stand in another order: each is found whole, but not the text as one.
    found = summary_scores(["the cat sat\na dog ran"], ["a dog ran\nthe cat sat"])
    assert found["rougeLsum"] == pytest.approx(1)
    assert found["rougeL"] == pytest.approx(0.5)
    assert summary_scores(["running cats"], ["runs cat"])["rouge1"] == pytest.approx(1)
    assert summary_scores(["running cats"], ["runs cat"], stemmer=False)["rouge1"] == 0
    assert set(summary_scores([""], ["a"]).values()) == {0.0}


# The best constant prediction, by counting --------------------------------------------------------


def batches(name, values, weights):
    weight = "weights" if name == "targets" else f"{name}_weights"
    arrays = zip(np.split(values, 2), np.split(weights, 2), strict=True)
    return [{name: value, weight: share} for value, share in arrays]


@pytest.mark.parametrize(
    ("head", "name"), [(LanguageModel(), "targets"), (Classification(3), "label")]
)
def test_the_most_frequent_choice(head, name):
    train = batches(name, np.array([2, 2, 1, 0, 1, 1]), np.array([1.0, 1, 1, 1, 1, 0]))
    asked = batches(name, np.array([2, 0, 2, 1]), np.array([1.0, 1, 1, 0]))
    scored = head.baseline(train, asked)
    # Counts 1, 2, 2 and one more of each; the first of equal ones is answered.
    assert scored["accuracy"] == 0.0
    expected = -(2 * np.log(3 / 8) + np.log(2 / 8)) / 3
    np.testing.assert_allclose(scored["loss"], expected, rtol=1e-12)


def test_the_mean_of_numbers():
    train = batches("score", np.array([1.0, 2.0, 6.0, 100.0]), np.array([1.0, 1, 1, 0]))
    asked = batches("score", np.array([3.0, 5.0, 9.0, 0.0]), np.array([1.0, 1, 0, 0]))
    assert Regression(label="score").baseline(train, asked) == {"squared_error": 2.0}


def test_no_constant_span_makes_sense():
    assert Span().baseline([], []) == {}
