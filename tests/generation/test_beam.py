"""Beam search: the best of all texts, each row by itself, on a mesh as on one device."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import engine_of
from tiny_models import random_parameters, structure_of, tiny, tiny_encoder_decoder

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.functional import DynamicNTK, KeyPadding, RoPE
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.beam import BeamSearch, beam_search
from jaxformer.generation.decode.processors import History
from jaxformer.generation.inputs import Prompts
from jaxformer.nn.cache import CacheShape

MOST, BEAMS, END, VOCABULARY = 5, 3, 4, 6
CONFIG = tiny(num_layers=1, vocab_size=VOCABULARY)
PROMPTS = [[1, 0, 2], [5], [3, 1]]
SEARCH = GenerationConfig(
    max_new_tokens=MOST,
    num_beams=BEAMS,
    num_return_sequences=BEAMS,
    eos_token_id=END,
    length_penalty=0.6,
)


@pytest.fixture(scope="module")
def engine():
    return engine_of(CONFIG)


def log_probs_of(config):
    """The full pass: tokens `[B, T]` to the log-probabilities `[B, T, V]` of what follows."""
    parameters = random_parameters(config)
    return jax.jit(lambda rows: jax.nn.log_softmax(structure_of(config).module(parameters)(rows)))


def test_with_room_for_all_texts_it_ranks_all_texts(engine):
    prompt, most, penalty = [1, 0, 2], 3, 0.6
    texts = [
        text
        for length in range(1, most + 1)
        for text in product(range(VOCABULARY), repeat=length)
        if END not in text[:-1] and (length == most or text[-1] == END)
    ]
    rows = np.array([[*prompt, *text, *[0] * (most - len(text))] for text in texts])
    log_probs = np.array(log_probs_of(CONFIG)(rows))[:, 2:-1]
    log_probs = np.take_along_axis(log_probs, rows[:, 3:, None], axis=2)[:, :, 0]
    lengths = np.array([len(text) for text in texts])
    real = np.arange(most)[None, :] < lengths[:, None]
    scores = np.sum(log_probs, axis=1, where=real) / lengths**penalty
    room = VOCABULARY**most
    options = {"max_new_tokens": most, "num_beams": room, "num_return_sequences": room}
    found = engine.beam_search(
        Prompts.of_rows([prompt]), GenerationConfig(**vars(SEARCH) | options)
    )
    best = np.argsort(-scores)
    assert len(best) == 1 + 5 + 25 * VOCABULARY
    for place, number in enumerate(best):
        assert tuple(found.tokens[place, : found.lengths[place]]) == texts[number]
    np.testing.assert_allclose(found.scores[: len(best)], scores[best], atol=1e-5)
    # There are no others.
    assert np.all(found.scores[len(best) :] == -np.inf)


def test_a_row_is_what_it_is_alone_on_whichever_side_it_is_padded(engine):
    ids, mask = np.full((3, 4), 5), np.zeros((3, 4), int)
    for row, prompt in enumerate(PROMPTS):
        places = slice(0, len(prompt)) if row == 0 else slice(-len(prompt), None)
        ids[row, places], mask[row, places] = prompt, 1
    together = engine.beam_search(Prompts.of_ids(ids, mask), SEARCH)
    for row, prompt in enumerate(PROMPTS):
        alone = engine.beam_search(Prompts.of_rows([prompt]), SEARCH)
        own = slice(BEAMS * row, BEAMS * (row + 1))
        longest = alone.tokens.shape[1]
        np.testing.assert_array_equal(together.tokens[own, :longest], alone.tokens)
        np.testing.assert_array_equal(together.lengths[own], alone.lengths)
        np.testing.assert_allclose(together.scores[own], alone.scores, rtol=1e-5)


def test_a_row_has_a_limit_of_its_own():
    search, parameters = BeamSearch((), (END,), BEAMS, 1.0, "never"), random_parameters(CONFIG)

    @jax.jit
    def searched(history):
        model = structure_of(CONFIG).module(parameters)
        cache = model.init_cache(CacheShape(3, capacity=16, chunk=16, storage="float32"))
        return beam_search(model, search, history, cache)

    def texts(limits):
        tokens, ones = np.zeros((3, 16), np.int32), np.ones(3, np.int32)
        tokens[:, 0] = 1, 0, 2
        return searched(History(tokens, ones, ones, np.array(limits, np.int32)))

    limits = (3, 9, 5)
    together = texts(limits)
    for row, limit in enumerate(limits):
        for found, expected in zip(together, texts((limit,) * 3), strict=True):
            np.testing.assert_array_equal(found[row], expected[row])
        assert together.lengths[row].max() == limit - 1


@pytest.mark.more
def test_what_changes_with_the_length_is_read_again():
    config = tiny(num_layers=1, position=RoPE(scaling=DynamicNTK(2.0, 7)))
    prompt, most = np.array([[9, 8, 7, 6, 5, 4]]), 3
    options = GenerationConfig(max_new_tokens=most, num_beams=BEAMS, num_return_sequences=BEAMS)
    found = engine_of(config).beam_search(Prompts.of_ids(prompt, None), options)
    rows, totals, log_probs = np.repeat(prompt, BEAMS, axis=0), 0.0, log_probs_of(config)
    for new in found.tokens.T:
        # Not of the whole text at once: a shorter one is read in another way.
        totals += np.array(log_probs(rows))[np.arange(BEAMS), -1, new]
        rows = np.concatenate([rows, new[:, None]], axis=1)
    np.testing.assert_allclose(found.scores, totals / most, rtol=1e-5)


@pytest.mark.more
def test_a_mesh_finds_the_same():
    sizes = {"num_layers": 1, "num_decoder_layers": 1, "model_dim": 24, "mlp_dim": 18}
    config = tiny_encoder_decoder(vocab_size=36, **sizes)
    memory = np.random.default_rng(0).normal(size=(2, 5, 24)).astype(np.float32)
    encoder_outputs = memory, KeyPadding(np.arange(5)[None, :] < np.array([[5], [2]]))
    found, expected = (
        engine_of(config, mesh).beam_search(
            Prompts.of_rows([[1], [3, 2]]), SEARCH, encoder_outputs=encoder_outputs
        )
        for mesh in (make_mesh(MeshConfig(data=2, tensor=2)), None)
    )
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_the_keys_of_a_memory_are_kept_once():
    config = tiny_encoder_decoder(num_layers=1, num_decoder_layers=1)
    abstract_model, parameters = structure_of(config), random_parameters(config)

    def picked(memory):
        shape = CacheShape(2, capacity=16, chunk=16, storage="int8")
        cache = abstract_model.module(parameters).init_cache(shape, memory)
        return cache.reorder(jnp.zeros((2, BEAMS), jnp.int32))

    cache = jax.eval_shape(picked, jnp.zeros((2, 5, config.model_dim)))
    ((own, shared, _),) = cache.layers
    assert [len(x) for x in jax.tree.leaves(own)] == [2 * BEAMS] * 4
    assert [len(x) for x in jax.tree.leaves(shared)] == [2] * 4
