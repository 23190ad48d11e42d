"""Evaluation is exact: the metrics of all rows at once, on any mesh, whatever the batches."""

import json
import math
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sklearn_metrics
from tiny_models import batch_for, random_parameters, scores_of, tiny, tiny_encoder
from tiny_run import tiny_config
from train_steps import on_devices, program_of

from jaxformer.data import Bytes, Data, Datasets, ExampleSource
from jaxformer.data.tasks import SpanText
from jaxformer.data.tasks.sequences import EncodedText
from jaxformer.data.tasks.span_text import Question, SpanExamples, Window
from jaxformer.functional import LossSums
from jaxformer.models import (
    Classification,
    Head,
    LanguageModel,
    MaskedLanguageModel,
    Regression,
    Span,
    TokenClassification,
)
from jaxformer.models.heads import Predictions
from jaxformer.models.heads.base import HeadResult
from jaxformer.models.heads.metrics import answer_scores
from jaxformer.training.evaluation.conclusion import Conclusion
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.logging.run_logger import format_metrics

ROWS, LENGTH = 13, 7
TAGS = ("B-LOC", "B-PER", "I-LOC", "I-PER", "O")
# Sizes that eight devices can share.
MODEL = tiny_encoder(
    vocab_size=40,
    model_dim=24,
    num_heads=8,
    num_kv_heads=4,
    mlp_dim=16,
    heads=(
        MaskedLanguageModel(),
        TokenClassification(num_labels=5),
        Classification(num_labels=3),
        Classification(num_labels=2, label="next_sentence"),
        Regression(label="rating"),
    ),
)
MESHES = [((1, 1, 1), 1), ((1, 1, 1), 4), ((8, 1, 1), 1), ((2, 2, 2), 2), ((1, 4, 2), 1)]
each_mesh = pytest.mark.parametrize(("mesh", "parts"), MESHES)


class Rows(ExampleSource):
    """Rows of arrays."""

    def __init__(self, arrays):
        self.arrays = arrays

    def __len__(self):
        return len(self.arrays["inputs"])

    def read(self, index, rng):
        return {name: array[index] for name, array in self.arrays.items()}

    def blank(self):
        row = self.read(0, None)
        return {name: np.zeros_like(x) if "weights" in name else x for name, x in row.items()}


@dataclass(frozen=True)
class Arrays(Data):
    """Data that are there already."""

    @property
    def lengths(self):
        return {"inputs": LENGTH}

    def prepare(self, folder):
        raise AssertionError("they are there already")


def everything():
    random = np.random.default_rng(5)
    arrays = batch_for(MODEL, ROWS, LENGTH)
    arrays["targets"] %= 5
    arrays["next_sentence"] = random.integers(0, 2, ROWS).astype(np.int32)
    arrays["rating"] = random.normal(size=ROWS).astype(np.float32)
    # Some rows have no label of one kind, some none of another.
    arrays["next_sentence_weights"] = (random.random(ROWS) < 0.7).astype(np.float32)
    arrays["rating_weights"] = (random.random(ROWS) < 0.7).astype(np.float32)
    arrays["weights"] = (arrays["weights"] > 0).astype(np.float32)
    return arrays


def evaluated(arrays, mesh=(1, 1, 1), parts=1, **fields):
    """The metrics of rows of arrays."""
    data = Arrays(**({"batch_size": 8} | fields))
    rows = Datasets(None, data.dataset(Rows(arrays), "validation"), labels=TAGS)
    program = program_of(MODEL, mesh, gradient_accumulation=parts)
    evaluator = Evaluator(program, rows, data.max_validation_batches)
    return evaluator.evaluate(on_devices(program, random_parameters(MODEL)))


def expected_metrics(arrays):
    """From the scores of all rows at once, by scikit-learn and scipy."""
    found = jax.device_get(scores_of(MODEL, random_parameters(MODEL), arrays))
    losses, expected = [], {}

    def picked(name, key, weights):
        scores = found[name].astype(np.float64)
        log_z = np.log(np.exp(scores).sum(-1))
        right = np.take_along_axis(scores, arrays[key][..., None], -1)[..., 0]
        losses.append(((log_z - right) * weights).sum() / weights.sum())
        counted = weights > 0
        return arrays[key][counted], scores.argmax(-1)[counted], weights[counted]

    wanted, made, _ = picked("masked_language_model", "targets", arrays["weights"])
    expected["masked_language_model_perplexity"] = math.exp(losses[-1])
    expected["masked_language_model_accuracy"] = (wanted == made).mean()
    wanted, made, _ = picked("tags", "targets", arrays["weights"])
    expected["tags_accuracy"] = (wanted == made).mean()
    for name, average in (("label", "macro"), ("next_sentence", "binary")):
        wanted, made, weights = picked(name, name, arrays[f"{name}_weights"])
        options = {"sample_weight": weights}
        accuracy = sklearn_metrics.accuracy_score(wanted, made, **options)
        expected[f"{name}_accuracy"] = accuracy
        f1 = sklearn_metrics.f1_score(wanted, made, average=average, **options)
        expected[f"{name}_{'f1' if average == 'binary' else 'macro_f1'}"] = f1
        matthews = sklearn_metrics.matthews_corrcoef(wanted, made, **options)
        expected[f"{name}_matthews"] = matthews
    counted = arrays["rating_weights"] > 0
    wanted, made = arrays["rating"][counted], found["rating"][counted]
    losses.append(np.mean((wanted - made) ** 2))
    expected["rating_squared_error"] = losses[-1]
    expected["rating_pearson"] = stats.pearsonr(wanted, made).statistic
    expected["rating_spearman"] = stats.spearmanr(wanted, made).statistic
    return expected | {"loss": sum(losses)}


@each_mesh
@pytest.mark.quick("mesh3-2")
def test_metrics_are_those_of_all_rows_at_once(mesh, parts):
    arrays = everything()
    values = evaluated(arrays, mesh, parts)
    for name, expected in expected_metrics(arrays).items():
        assert values[name] == pytest.approx(expected, rel=1e-5), name
    assert 0 < values["label_accuracy"] < 1
    assert {"tags_entity_f1", "tags_entity_precision", "tags_entity_recall"} <= set(values)


def test_every_process_can_read_the_predictions():
    program = program_of(MODEL, (2, 2, 2))
    arrays = {name: array[:8] for name, array in everything().items()} | {"row": np.arange(8)}
    batch = jax.device_put(arrays, program.batch_sharding)
    assert not batch["label"].is_fully_replicated
    measured = program.eval_step(on_devices(program, random_parameters(MODEL)), batch)
    assert all(array.is_fully_replicated for array in jax.tree.leaves(measured))


@pytest.mark.more
def test_a_part_of_the_rows_is_spread_over_all_of_them():
    arrays = everything()
    chosen = [number * ROWS // 8 for number in range(8)]
    some = expected_metrics({name: array[chosen] for name, array in arrays.items()})
    for parts in (1, 2):
        values = evaluated(arrays, parts=parts, batch_size=4, max_validation_batches=2)
        for name, expected in some.items():
            assert values[name] == pytest.approx(expected, rel=1e-5), name


def test_a_head_with_nothing_to_predict_has_no_metrics():
    arrays = everything()
    arrays["rating_weights"][:] = 0
    values = evaluated(arrays)
    assert not [name for name in values if name.startswith("rating")]
    assert math.isfinite(values["loss"])


@pytest.mark.more
def test_text_is_measured_per_byte(tmp_path):
    config = tiny_config()
    data, program = config.data.prepare(tmp_path), program_of(config.model)
    params = random_parameters(config.model)
    values = Evaluator(program, data, None).evaluate(on_devices(program, params))

    rows = next(data.validation.epoch(data.validation.num_rows))
    scores = scores_of(config.model, params, rows)["language_model"]
    losses = -np.asarray(jax.nn.log_softmax(scores), np.float64)
    losses = np.take_along_axis(losses, rows["targets"][..., None], -1)[..., 0] * rows["weights"]
    text = data.validation.examples.stream
    assert rows["weights"].sum() == text.num_targets
    mean = losses.sum() / text.num_targets
    assert values["perplexity"] == pytest.approx(math.exp(mean), rel=1e-5)
    assert values["bits_per_byte"] == pytest.approx(losses.sum() / text.num_bytes / math.log(2))


# Questions ----------------------------------------------------------------------------------------

CONTEXT = "The Denver Broncos, of Denver (Colorado), won  Super Bowl 50 by 24–10 in Santa Clara."
QUESTIONS = {
    "Who won?": ["Denver Broncos", "the Broncos"],
    "Who lost?": [],
    "By how much?": ["24–10"],
    "Where was that?": ["Santa Clara"],
}


@pytest.fixture
def questions(tmp_path):
    """Windows of Bytes over one context, many to a question."""
    qas = [
        {
            "id": text,
            "question": text,
            "answers": [{"text": a, "answer_start": max(CONTEXT.find(a), 0)} for a in answers],
        }
        for text, answers in QUESTIONS.items()
    ]
    file = tmp_path / "questions.json"
    file.write_text(json.dumps({"data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]}))
    return SpanText(
        train=str(file),
        validation=str(file),
        tokenizer=Bytes(),
        sequence_length=64,
        question_length=16,
        stride=16,
        batch_size=8,
    )


SPANS = tiny_encoder(
    vocab_size=264,
    position=tiny().position,
    model_dim=24,
    num_heads=8,
    num_kv_heads=4,
    mlp_dim=16,
    heads=(Span(longest=9),),
)


def answers_by_brute_force(examples, params):
    """(score, text) of every span of every window; the best for each question."""
    best = {}
    for index, window in enumerate(examples.windows):
        row = examples.read(index, None)
        (scores,) = scores_of(SPANS, params, {k: v[None] for k, v in row.items()})["span"]
        scores = np.asarray(scores)
        question = examples.questions[window.question].text
        spans = best.setdefault(question, {"nothing": [], "some": []})
        spans["nothing"].append(scores[0, 0] + scores[1, 0])
        end = window.offset + len(window.characters)
        spans["some"] += [
            (scores[0, first] + scores[1, last], examples.answer(index, first, last))
            for first in range(window.offset, end)
            for last in range(first, min(first + 9, end))
        ]
    found = {}
    for question, spans in best.items():
        score, text = max(spans["some"])
        found[question] = text if score > min(spans["nothing"]) else ""
    return found


@pytest.mark.more
@pytest.mark.parametrize("mesh", [(1, 1, 1), (2, 2, 2)])
def test_the_best_window_answers(questions, tmp_path, mesh):
    data = questions.prepare(tmp_path / "run")
    examples = data.validation.examples
    assert len(examples) > 2 * len(QUESTIONS)
    params = random_parameters(SPANS, seed=4)
    expected = answers_by_brute_force(examples, params)
    assert len(set(expected.values())) == 3
    assert "" in expected.values()
    program = program_of(SPANS, mesh)
    params = on_devices(program, params)
    evaluator = Evaluator(program, data, questions.max_validation_batches)
    result = evaluator.measure(params)["span"]
    texts, references = examples.best_answers(result)
    assert texts == list(expected.values())
    assert [list(answers) for answers in references] == list(QUESTIONS.values())
    values = evaluator.evaluate(params)
    assert values == {"loss": result.loss, **answer_scores(texts, references)}


@given(st.permutations(range(3)), st.floats(-2, 2))
def test_no_answer_needs_every_window(order, nothing):
    text = EncodedText(np.arange(3), np.zeros(3))
    characters = np.stack([np.arange(3), np.arange(1, 4)], axis=1)
    windows = [Window(0, text, (0, 0), 1.0, 0, characters)] * 3
    question = Question("file:1", "which?", "abc", ("b",), 1)
    examples = SpanExamples([question], windows, 3, 0)
    scores = np.array([[0.0, 5.0], [1.0, nothing], [-1.0, 3.0]])
    spans = np.array([[0, 0], [1, 1], [2, 2]])
    order = np.array(order)
    predictions = Predictions(spans[order], spans, np.ones(3), scores[order])
    result = HeadResult(LossSums(0.0, 1.0, 0.0, 0.0), predictions, order)
    assert examples.best_answers(result) == (["b" if nothing < 1 else ""], [("b",)])


# What is shown and kept ---------------------------------------------------------------------------


def test_another_kind_of_head_shows_its_accuracy():
    @dataclass(frozen=True)
    class Own(Head):
        name = "own"

        def build(self, key, config):
            raise AssertionError("it has no parameters")

    result = HeadResult(LossSums(6.0, 4.0, 3.0, 0.0), None, np.zeros(0))
    assert Own().metrics(result, None) == {"accuracy": 0.75}


def test_tags_without_names_mark_no_entities():
    predictions = Predictions(np.array([[0, 1]]), np.array([[0, 0]]), np.ones((1, 2)))
    result = HeadResult(LossSums(1.0, 2.0, 1.0, 0.0), predictions, np.zeros(1))
    values = TokenClassification(num_labels=2).metrics(result, Datasets(None, None))
    assert set(values) == {"accuracy", "macro_f1"}


def test_an_enormous_loss_has_a_perplexity():
    result = HeadResult(LossSums(1e9, 1.0, 0.0, 0.0), None, np.zeros(0))
    data = Datasets(None, None)
    for head in (LanguageModel(), MaskedLanguageModel()):
        assert 1e300 < head.metrics(result, data)["perplexity"] < math.inf


def test_a_conclusion_on_disk(tmp_path):
    config = tiny_config()
    metrics = {"loss": 0.5, "pearson": math.nan}
    (file,) = Conclusion(3, 7, metrics, {"accuracy": 0.25}, []).save(
        tmp_path / "a.json", tmp_path / "run", config.data
    )
    content = json.loads(file.read_text())
    data = content.pop("data")
    assert data["sequence_length"] == config.data.sequence_length
    assert content == {
        "run": str(tmp_path / "run"),
        "step": 3,
        "rows": 7,
        "metrics": {"loss": 0.5, "pearson": None},
        "trivial": {"accuracy": 0.25},
    }


def test_metrics_in_words():
    words = format_metrics({"loss": 0.123456, "macro_f1": 0.5, "bits_per_byte": 1.23})
    assert words == "loss 0.1235, macro f1 0.5, bits per byte 1.23"
    names = ("loss", "tags_accuracy", "tags_entity_f1", "tags_entity_recall", "tags", "label_f1")
    words = format_metrics(dict.fromkeys(names, 2.0))
    assert words == "loss 2, tags accuracy 2, entity f1 2, recall 2, tags 2, label f1 2"
