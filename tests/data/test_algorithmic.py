"""Algorithmic tasks, compared with Python's own results for the same strings."""

from dataclasses import replace

import numpy as np
import pytest

from jaxformer.data.tasks.algorithmic import (
    EQUALS,
    PAD,
    RULES,
    SYMBOLS,
    VOCAB_SIZE,
    Algorithmic,
)

TASKS = pytest.mark.parametrize("task", RULES)


def text(tokens):
    return "".join(SYMBOLS[token] for token in tokens)


def number(digits):
    """A binary number whose lowest digit comes first."""
    return sum(int(digit) << place for place, digit in enumerate(digits))


def answer(task, given):
    """What a task's output is, from its text alone."""
    if task == "copy":
        return given
    if task == "reverse":
        return "".join(reversed(given))
    if task == "parity":
        return str(given.count("1") % 2)
    if task == "sorting":
        return "".join(sorted(given))
    if task == "addition":
        first, second = given.split("+")
        return f"{number(first) + number(second):b}"[::-1] + "<end>"
    half = len(given) // 2
    first, second = given[:half], given[half : 2 * half]
    place = (first + second).index("?")
    return (second + first)[place]


def examples(task, length=9, rows=300, **options):
    data = Algorithmic(task=task, length=length, num_rows=rows, **options)
    return data.prepare("unused").train.examples


@TASKS
def test_outputs_are_what_the_rule_says(task):
    source = examples(task)
    sizes = set()
    for index in range(len(source)):
        given, output = source.pair(index)
        assert text(output) == answer(task, text(given))
        assert len(output) <= len(given)
        sizes.add(len(given))
    assert sizes == set(range(RULES[task].shortest, 10))


def test_a_string_with_a_hidden_symbol_is_otherwise_twice_the_same():
    source = examples("missing_duplicate", length=8)
    for index in range(100):
        given, _ = source.pair(index)
        whole = text(given).rstrip("_")
        assert (len(given) - len(whole)) == len(given) % 2
        first, second = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        assert sum(a != b for a, b in zip(first, second, strict=True)) == 1


@TASKS
def test_a_decoder_predicts_the_output_and_nothing_else(task):
    source = examples(task)
    for index in range(20):
        given, output = source.pair(index)
        row = source.read(index, np.random.default_rng(0))
        size = len(given) + len(output)
        assert text(row["inputs"][: len(given) + 1]) == text(given) + "="
        assert row["targets"][row["weights"] > 0].tolist() == output.tolist()
        assert row["weights"][len(given) :][: len(output)].all()
        np.testing.assert_array_equal(row["inputs"][1:size], row["targets"][: size - 1])
        assert (row["inputs"][size:] == PAD).all()
        assert not row["weights"][size:].any()


@TASKS
def test_the_layouts_hold_the_same_examples(task):
    plain = examples(task)
    prefix = examples(task, layout="prefix")
    both = examples(task, layout="encoder_decoder")
    rng = np.random.default_rng(0)
    for index in range(20):
        given, output = plain.pair(index)
        row = prefix.read(index, rng)
        assert row.pop("prefix") == len(given) + 1
        assert {k: v.tolist() for k, v in row.items()} == {
            k: v.tolist() for k, v in plain.read(index, rng).items()
        }
        row = both.read(index, rng)
        assert row["inputs"][row["segments"] > 0].tolist() == given.tolist()
        assert row["targets"][row["weights"] > 0].tolist() == output.tolist()
        read = [EQUALS, *output[:-1]]
        assert row["decoder_inputs"][row["decoder_segments"] > 0].tolist() == read


def test_examples_follow_from_the_seed():
    pairs = [examples("copy", seed=seed).pair(7)[0].tolist() for seed in (1, 1, 2)]
    assert pairs[0] == pairs[1] != pairs[2]


def test_validation_does_not_depend_on_the_seed_of_training():
    data = Algorithmic(task="sorting", length=12)
    sides = [replace(data, seed=seed).prepare("unused").validation.examples for seed in (0, 1)]
    assert sides[0].pair(3)[0].tolist() == sides[1].pair(3)[0].tolist()
    train = data.prepare("unused").train.examples
    assert [train.pair(i)[0].tolist() for i in range(9)] != [
        sides[0].pair(i)[0].tolist() for i in range(9)
    ]


@TASKS
def test_evaluation_takes_inputs_of_one_length(task):
    data = Algorithmic(task=task, length=6).of_length(20, 15)
    validation = data.prepare("unused").validation
    assert len(validation.examples) == 15
    assert {len(validation.examples.pair(i)[0]) for i in range(15)} == {20}
    (batch,) = validation.epoch(15)
    assert batch["inputs"].shape == (15, 40)
    assert batch["inputs"].max() < VOCAB_SIZE
