import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import engine_of
from tiny_models import random_parameters, structure_of, tiny, tokens

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, DynamicNTK, Learned, LongRoPE, RoPE
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.engine import CHUNK, Engine, row_keys
from jaxformer.generation.inputs import Prompts, bucket
from jaxformer.generation.tokens import new_tokens, stream_sliding, stream_tokens
from jaxformer.models import Classification

LENGTHS = np.array([7, 3, 1])
PROMPTS = [list(np.asarray(tokens(1, n, seed=n))[0]) for n in LENGTHS]
GREEDY = GenerationConfig(max_new_tokens=10)
DRAWN = GenerationConfig(max_new_tokens=10, do_sample=True, temperature=1.5, top_k=20)


def generated(engine, prompts, decoding, numbers=None, **options):
    keys = row_keys(decoding.seed, np.arange(len(prompts)) if numbers is None else numbers)
    return new_tokens(engine, Prompts.of_rows(prompts), decoding, keys, **options)


@pytest.fixture(scope="module")
def engine():
    return engine_of(tiny(windows=(3, None)))


@pytest.mark.parametrize(
    "position",
    [
        RoPE(),
        ALiBi(),
        Learned(max_length=17),
        RoPE(scaling=DynamicNTK(2.0, 9)),
        RoPE(scaling=LongRoPE((1.0, 2.0), (3.0, 5.0), 10, factor=2.0)),
    ],
    ids=lambda position: type(getattr(position, "scaling", position)).__name__,
)
@pytest.mark.quick("NoScaling")
def test_every_logit_is_that_of_the_full_pass(position):
    config = tiny(position=position, windows=(3, None))
    parameters = random_parameters(config, scale=0.3)  # roundings stay roundings
    engine = Engine(config, structure_of(config), parameters)
    found = generated(engine, PROMPTS, GREEDY, keep_scores=True)
    full = jax.jit(lambda inputs: structure_of(config).module(parameters)(inputs))
    for row, prompt in enumerate(PROMPTS):
        text = list(prompt)
        for number, token in enumerate(found.tokens[row]):
            # What follows changes nothing, unless positions depend on the length.
            after = [] if position.changes_at(LENGTHS) is not None else [0] * (17 - len(text))
            logits = full(jnp.asarray([text + after]))[0, len(text) - 1]
            np.testing.assert_allclose(found.scores[number, row], logits, atol=1e-5, rtol=1e-5)
            log_prob = jax.nn.log_softmax(logits)[token]
            np.testing.assert_allclose(found.log_probs[row, number], log_prob, atol=1e-5)
            assert token == np.argmax(logits)
            text.append(token)


@pytest.mark.parametrize("decoding", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.quick("greedy")
def test_a_row_is_what_it_is_alone(engine, decoding):
    together = generated(engine, PROMPTS, decoding)
    for row, prompt in enumerate(PROMPTS):
        alone = generated(engine, [prompt], decoding, np.array([row]))
        np.testing.assert_array_equal(alone.tokens[0], together.tokens[row])


def test_a_seed_decides_the_draws(engine):
    one, same = (generated(engine, PROMPTS, DRAWN) for _ in range(2))
    np.testing.assert_array_equal(one.tokens, same.tokens)
    other = GenerationConfig(**(vars(DRAWN) | {"seed": 1}))
    assert (generated(engine, PROMPTS, other).tokens != one.tokens).any()


def test_a_row_ends_after_an_end_token(engine):
    free = generated(engine, PROMPTS, GREEDY)
    end = int(free.tokens[0, 4])
    found = generated(engine, PROMPTS, GenerationConfig(max_new_tokens=10, eos_token_id=(end, 40)))
    for row in range(len(PROMPTS)):
        before = list(free.tokens[row])
        expected = before[: before.index(end) + 1] if end in before else before
        assert list(found.tokens[row, : found.lengths[row]]) == expected
        assert not found.log_probs[row, found.lengths[row] :].any()


def test_a_stream_tells_the_same_and_stops_where_it_is_told(engine):
    whole = generated(engine, PROMPTS, GREEDY)
    keys = row_keys(0, np.arange(3))
    parts = list(stream_tokens(engine, Prompts.of_rows(PROMPTS), GREEDY, keys, every=3))
    assert [len(part[0].tokens) for part in parts] == [3, 3, 3, 1]
    for row in range(3):
        joined = np.concatenate([part[row].tokens for part in parts])
        np.testing.assert_array_equal(joined, whole.tokens[row])

    over = np.array([True, False, False])
    options = {"every": 2, "stopped": lambda: over}
    parts = list(stream_tokens(engine, Prompts.of_rows(PROMPTS), GREEDY, keys, **options))
    # What was under way when the row was stopped still comes.
    assert [sum(len(part[row].tokens) for part in parts) for row in range(3)] == [4, 10, 10]


@pytest.mark.more
def test_a_long_prompt_is_read_in_chunks(monkeypatch):
    config = tiny(windows=(3, None))
    prompts = [list(np.asarray(tokens(1, n, seed=n))[0]) for n in (50, 17, 2)]
    whole = generated(engine_of(config), prompts, GREEDY)
    monkeypatch.setattr("jaxformer.generation.engine.CHUNK", 16)
    small = generated(engine_of(config), prompts, GREEDY)
    np.testing.assert_array_equal(small.tokens, whole.tokens)
    assert CHUNK == 512


@pytest.mark.more
def test_few_programs_are_compiled():
    engine = engine_of(tiny())
    for length in (1, 2, 3, 9, 16, 20, 33, 40, 50):
        generated(engine, [[1] * length], GREEDY)
    assert engine._generate._cache_size() == 1
    assert engine._first_token._cache_size() == 3  # of 16, 32 and 64 tokens
    assert engine._prefill._cache_size() == 0
    assert [bucket(size, 16) for size in (1, 16, 17, 64, 65)] == [16, 16, 32, 64, 128]


@pytest.mark.more
@pytest.mark.parametrize("sizes", [{"data": 3}, {"fsdp": 3, "tensor": 2}, {"data": 3, "tensor": 2}])
@pytest.mark.parametrize("decoding", [GREEDY, DRAWN], ids=["greedy", "drawn"])
@pytest.mark.quick("greedy-sizes2")
def test_a_mesh_generates_the_same(sizes, decoding):
    config = tiny(windows=(3, None), model_dim=24, mlp_dim=18, vocab_size=36)
    one = generated(engine_of(config), PROMPTS, decoding)
    engine = engine_of(config, make_mesh(MeshConfig(**sizes)))
    found = generated(engine, PROMPTS, decoding)
    np.testing.assert_array_equal(found.tokens, one.tokens)
    np.testing.assert_allclose(found.log_probs, one.log_probs, atol=1e-4)
    with pytest.raises(ConfigError, match=r"2 rows cannot be sharded over data .*= 3"):
        generated(engine, PROMPTS[:2], decoding)
    state = engine.prefill(Prompts.of_rows(PROMPTS), 4, keys=row_keys(0, np.arange(3)))
    spec = state.cache.layers[0][0].key.values.sharding.spec
    assert spec[0] == next(iter(sizes)), "the axis of rows that has several devices"
    assert spec[1] == ("tensor" if "tensor" in sizes else None)


@pytest.mark.slow
def test_one_row_on_a_mesh_of_one_device():
    config = tiny(windows=(3, None))
    engines = (engine_of(config, mesh) for mesh in (make_mesh(MeshConfig()), None))
    found, expected = (generated(each, PROMPTS[:1], DRAWN) for each in engines)
    np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.more
def test_a_window_slides_where_positions_end():
    engine = engine_of(tiny(position=Learned(max_length=12)))
    decoding = GenerationConfig(max_new_tokens=20)
    with pytest.raises(ConfigError, match=r"max_new_tokens = 20.*7 tokens.*27 positions.*has 12"):
        generated(engine, PROMPTS, decoding)
    keys = row_keys(0, np.arange(3))
    parts = list(stream_sliding(engine, Prompts.of_rows(PROMPTS), decoding, keys, every=5))
    rows = [np.concatenate([part[row].tokens for part in parts]) for row in range(3)]
    assert [len(row) for row in rows] == [20, 20, 20]
    # Seven tokens and twenty more do not fit into twelve: the last six are read, and six follow.
    first = generated(engine, [PROMPTS[0][-6:]], GenerationConfig(max_new_tokens=6)).tokens[0]
    np.testing.assert_array_equal(rows[0][:6], first)
    text = [*PROMPTS[0], *first][-6:]
    second = generated(engine, [text], GenerationConfig(max_new_tokens=6)).tokens[0]
    np.testing.assert_array_equal(rows[0][6:12], second)


def test_nothing_slides_without_an_end(engine):
    with pytest.raises(ConfigError, match="slide = True"):
        next(stream_sliding(engine, Prompts.of_rows(PROMPTS), GREEDY, row_keys(0, np.arange(3))))


def test_a_model_without_a_language_model_is_refused():
    with pytest.raises(ConfigError, match="no head that predicts the next token"):
        engine_of(tiny(heads=(Classification(num_labels=3),)))
