"""Learning answers alone: no gradient of a prompt's label, and packed rows are padded ones."""

from functools import lru_cache

import chex
import numpy as np
import pytest
from tiny_models import random_parameters, tiny
from train_steps import program_of, stepped

from jaxformer.data.chat.examples import ChatExamples, PackedChats, PaddedChats, answer_weights
from jaxformer.functional import ALiBi, RoPE
from jaxformer.optim import SGD, Constant

pytestmark = pytest.mark.more

LENGTH, CHATS = 24, 9
OPTIMIZER = SGD(schedule=Constant(learning_rate=0.1, warmup_steps=0), momentum=0.0)
POSITIONS = {"rope": RoPE(theta=100.0), "alibi": ALiBi()}


@lru_cache
def conversations():
    """Tokens, and the number of the answer that each belongs to: one to three answers."""
    chance, found = np.random.default_rng(0), []
    for _ in range(CHATS):
        answers = []
        for number in range(1, chance.integers(2, 4)):
            answers += [0] * chance.integers(1, 4) + [number] * chance.integers(1, 4)
        found.append((chance.integers(0, 31, len(answers), dtype=np.int32), np.array(answers)))
    return found


def batch_of(packing, per="token", rows=CHATS):
    """All conversations in one batch, filled up with empty rows."""
    tokens, answers = zip(*conversations(), strict=True)
    weights = [answer_weights(each, per) for each in answers]
    examples = ChatExamples(tokens, weights, packing, LENGTH, pad_id=0)
    made = [examples.read(number, np.random.default_rng(0)) for number in range(len(examples))]
    made += [examples.blank()] * (rows - len(made))
    return {name: np.stack([row[name] for row in made]) for name in made[0]}, len(examples)


@lru_cache
def program_with(position, parts, chunk):
    model = tiny(num_layers=1, position=POSITIONS[position])
    options = {"gradient_accumulation": parts, "loss_chunk": chunk}
    return program_of(model, optimizer=OPTIMIZER, clip_norm=None, **options)


def update(batch, position="rope", parts=1, chunk=None):
    """What one step of gradient descent changes, and its loss."""
    program = program_with(position, parts, chunk)
    start = random_parameters(program.model, 1)
    state, (metrics,) = stepped(program, batch, start)
    changes = {name: np.asarray(state.params[name] - start[name]) for name in start}
    return changes, metrics["loss"]


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize("packing", [PackedChats(), PaddedChats()], ids=["packed", "padded"])
@pytest.mark.quick("packed-7")
def test_the_label_of_a_prompt_is_never_learned(packing, chunk):
    batch, _ = batch_of(packing)
    expected, loss = update(batch, chunk=chunk)
    unlearned = np.where(batch["weights"] > 0, batch["targets"], 30 - batch["targets"])
    found, other = update(batch | {"targets": unlearned}, chunk=chunk)
    assert other == loss
    chex.assert_trees_all_equal(found, expected)
    # That of an answer is.
    wrong = np.where(batch["weights"] > 0, 30 - batch["targets"], batch["targets"])
    assert abs(update(batch | {"targets": wrong}, chunk=chunk)[1] - loss) > 1e-3


@pytest.mark.parametrize("per", ["token", "answer"])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.quick("rope-token", "alibi-answer")
def test_packed_is_padded(position, per):
    padded, rows = batch_of(PaddedChats(), per)
    packed, fewer = batch_of(PackedChats(), per)
    assert fewer < rows
    expected, loss = update(padded, position)
    found, other = update(packed, position)
    assert other == pytest.approx(loss, rel=1e-6)
    for name, change in expected.items():
        largest = np.abs(change).max()
        np.testing.assert_allclose(found[name], change, atol=1e-5 * largest, rtol=1e-4)


def test_in_parts_it_is_the_large_batch():
    # The parts hold different numbers of answers and of tokens.
    batch, _ = batch_of(PackedChats(), "answer")
    expected, loss = update(batch)
    found, other = update(batch, parts=3)
    assert other == pytest.approx(loss, rel=1e-6)
    chex.assert_trees_all_close(found, expected, atol=1e-6, rtol=1e-4)
