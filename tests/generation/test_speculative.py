"""Speculative decoding writes what the target alone would write, whatever proposes it."""

from dataclasses import replace
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import engine_of, prompts_of
from scipy.stats import chi2
from tiny_models import logits_of, random_parameters, tiny, tiny_encoder_decoder

from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.errors import ConfigError
from jaxformer.functional import ALiBi, DynamicNTK, KeyPadding, Learned, RoPE
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.loop import SamplingParams
from jaxformer.generation.decode.processors import History, process
from jaxformer.generation.engine import row_keys
from jaxformer.generation.inputs import Prompts
from jaxformer.generation.speculative import SpeculativeEngine
from jaxformer.generation.tokens import stream_states

GREEDY = SamplingParams((), False, ())
SIZES = {"num_layers": 2, "model_dim": 12, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
ONE_LAYER = SIZES | {"num_layers": 1, "num_heads": 1}
ONE = tiny(**ONE_LAYER, windows=(4,))
FAR = tiny(**ONE_LAYER, windows=(3,))
NEW = 20


@lru_cache
def engine(config, seed=0, scale=0.7):
    return engine_of(config, None, seed, scale)


@lru_cache
def speculative(target, draft, proposals=3):
    return SpeculativeEngine(target, draft, proposals)


@pytest.fixture(autouse=True)
def rings_are_small(monkeypatch):
    """A layer with a window keeps 8 tokens more than it sees, so that slots are used again."""
    monkeypatch.setattr("jaxformer.generation.engine.CHUNK", 8)


def written(model, prompts, sampling=GREEDY, new=NEW, seed=0, keys=None, **options):
    """The final state on the host, without the caches."""
    keys = row_keys(seed, np.arange(len(prompts.lengths))) if keys is None else keys
    state = model.prefill(prompts, new, keys=keys, **options)
    state = model.decode(sampling, state, new)
    names = {"cache": None, "draft_cache": None, "keys": None}
    dropped = {name: None for name in names if hasattr(state, name)}
    return jax.device_get(replace(state, **dropped))


def rows_of(state):
    """Each row's tokens, prompt included."""
    return [row[:n].tolist() for row, n in zip(*state.history[:2], strict=True)]


PROMPTS = prompts_of(1, 7, 3, 12)
SCHEMES = {"rope": RoPE(theta=100.0), "alibi": ALiBi(), "learned": Learned(max_length=40)}


LEARNED = tiny(**ONE_LAYER, position=SCHEMES["learned"])


def assert_same(found, plain, atol=2e-5):
    assert rows_of(found) == rows_of(plain)
    np.testing.assert_allclose(found.log_probs, plain.log_probs, atol=atol)
    assert not found.active.any()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.quick("rope")
def test_greedy_texts_are_those_of_the_target(scheme):
    config = tiny(**SIZES, position=SCHEMES[scheme], windows=(4, None))
    target, draft = engine(config), engine(config, scale=0.72)
    found = written(speculative(target, draft), PROMPTS)
    assert_same(found, written(target, PROMPTS))
    assert 0.2 < found.accepted.sum() / found.proposed.sum() < 1


@pytest.mark.more
@pytest.mark.parametrize("new", [1, 2, NEW])
def test_a_draft_of_another_kind_changes_nothing(new):
    target, draft = engine(ONE), engine(FAR, seed=5)
    found = written(speculative(target, draft, 1), PROMPTS, new=new)
    assert_same(found, written(target, PROMPTS, new=new))
    assert new < NEW or found.accepted.sum() < 0.2 * found.proposed.sum()


@pytest.mark.more
def test_a_model_accepts_all_that_it_proposes():
    target = engine(ONE)
    itself = speculative(target, target, 4)
    found = written(itself, PROMPTS)
    assert_same(found, written(target, PROMPTS))
    assert np.all(found.accepted == found.proposed)
    # Of 20 tokens every fifth is the target's own.
    assert found.proposed.tolist() == [16] * 4
    drawn = written(itself, PROMPTS, SamplingParams((), True, ()), seed=3)
    assert np.all(drawn.accepted == drawn.proposed)
    assert drawn.proposed.tolist() == [16] * 4
    assert rows_of(drawn) != rows_of(found)


# Rules ------------------------------------------------------------------------------------------

RULES = GenerationConfig(
    max_new_tokens=NEW,
    min_new_tokens=3,
    eos_token_id=(1, 2, 3),
    repetition_penalty=1.4,
    frequency_penalty=0.3,
    no_repeat_ngram_size=2,
    bad_words_ids=((8, 9), (11,)),
    suppress_tokens=(10,),
    forced_bos_token_id=7,
    forced_eos_token_id=30,
)


@pytest.mark.slow
def test_rules_and_ends_hold_at_every_place():
    target, draft = engine(ONE), engine(ONE, scale=0.72)
    prompts = prompts_of(*[1, 7, 3, 12] * 2, seed=1)
    plain = written(target, prompts, RULES.sampling, keep_scores=True)
    model = speculative(target, draft)
    found = written(model, prompts, RULES.sampling, keep_scores=True)
    assert_same(found, plain)
    np.testing.assert_allclose(found.scores, plain.scores, atol=2e-4)
    new = found.history.lengths - found.history.prompt_lengths
    # Some end early, at all places of a step, others at their limit.
    assert len({int(n) % 4 for n in new if n < NEW}) > 2
    assert new.max() == NEW
    assert all(row[-1] == 30 for row, n in zip(rows_of(found), new, strict=True) if n == NEW)
    assert np.all(found.accepted <= found.proposed)
    assert 0 < found.accepted.sum() < found.proposed.sum()


# Draws ------------------------------------------------------------------------------------------

DRAWS = GenerationConfig(
    max_new_tokens=NEW,
    eos_token_id=2,
    do_sample=True,
    temperature=0.8,
    top_k=20,
    repetition_penalty=1.2,
)


@pytest.mark.slow
def test_a_row_is_the_same_alone_and_in_a_batch():
    target, draft = engine(ONE), engine(ONE, scale=0.72)
    model, sampling = SpeculativeEngine(target, draft, 3), DRAWS.sampling
    together = written(model, PROMPTS, sampling)
    for row, length in enumerate(PROMPTS.lengths):
        own = Prompts(PROMPTS.tokens[row : row + 1, :length], PROMPTS.lengths[row : row + 1])
        alone = written(model, own, sampling, keys=row_keys(0, np.array([row])))
        assert rows_of(alone)[0] == rows_of(together)[row]
        assert alone.accepted[0] == together.accepted[row]
        assert alone.proposed[0] == together.proposed[row]


SMALL = tiny(**ONE_LAYER, vocab_size=7)
PLACES = 3


def exact(decoding, prompt):
    """Every text of `PLACES` tokens `[V^n, n]`, 0 after an end, and the target's probabilities."""
    size = SMALL.vocab_size
    texts = np.stack(np.meshgrid(*[np.arange(size)] * PLACES, indexing="ij"), -1)
    texts = texts.reshape(-1, PLACES).astype(np.int32)
    rows = np.concatenate([np.tile(prompt, (len(texts), 1)), texts], axis=1)
    parameters = random_parameters(SMALL, 0, 0.7)
    logits = logits_of(SMALL, parameters, jnp.asarray(rows[:, :-1]))
    probabilities, over = np.ones(len(texts)), np.zeros(len(texts), bool)
    for place in range(PLACES):
        lengths = jnp.full(len(texts), len(prompt) + place)
        prompts = jnp.full(len(texts), len(prompt))
        history = History(jnp.asarray(rows), lengths, prompts, prompts + PLACES)
        chosen = process(decoding.processors(), logits[:, len(prompt) - 1 + place], history)
        step = np.asarray(jax.nn.softmax(chosen, axis=-1), np.float64)
        token = texts[:, place]
        own = np.take_along_axis(step, token[:, None], axis=1)[:, 0]
        probabilities *= np.where(over, token == 0, own)
        over |= np.isin(token, decoding.end_tokens)
    return texts, probabilities


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 1.5, "top_k": 5, "repetition_penalty": 1.3, "eos_token_id": 3}],
    ids=["plain", "rules"],
)
def test_drawn_texts_are_distributed_as_the_targets(options):
    decoding, rows = GenerationConfig(max_new_tokens=PLACES, do_sample=True, **options), 4096
    prompt = np.array([1, 5], np.int32)
    prompts = Prompts(np.tile(prompt, (rows, 1)), np.full(rows, 2, np.int32))
    model = SpeculativeEngine(engine(SMALL), engine(SMALL, seed=9), 2)
    found = written(model, prompts, decoding.sampling, new=PLACES, seed=4)
    rate = found.accepted.sum() / found.proposed.sum()
    assert 0.02 < rate < 0.7
    texts, probabilities = exact(decoding, prompt)
    assert abs(probabilities.sum() - 1) < 1e-5
    new = found.history.tokens[:, 2 : 2 + PLACES]
    new = np.where(np.arange(PLACES) < (found.history.lengths - 2)[:, None], new, 0)
    counts = np.bincount(new @ [49, 7, 1], minlength=len(texts))
    assert counts[probabilities == 0].sum() == 0
    # Texts that are rare are counted together.
    often = probabilities * rows >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(probabilities[often], probabilities[~often].sum()) * rows
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert often.sum() > 20
    assert statistic < chi2.ppf(0.999, often.sum())


# Around it --------------------------------------------------------------------------------------


def test_states_come_as_they_are_reached():
    target, draft = engine(ONE), engine(ONE, scale=0.72)
    model = speculative(target, draft)
    whole = written(model, PROMPTS)
    keys = row_keys(0, np.arange(4))
    stopped = np.array([False, True, False, False])
    states = [
        rows_of(state)
        for state in stream_states(
            model, GREEDY, model.prefill(PROMPTS, NEW, keys=keys), 2, stopped=lambda: stopped
        )
    ]
    assert len(states) > 2
    for row, (length, end) in enumerate(zip(PROMPTS.lengths, rows_of(whole), strict=True)):
        lengths = [len(state[row]) for state in states]
        assert lengths == sorted(lengths)
        assert all(state[row] == end[: len(state[row])] for state in states)
        assert length < lengths[0]
        assert (lengths[-1] == len(end)) == (not stopped[row])


@pytest.mark.more
def test_encoder_decoders_propose_and_accept():
    config = tiny_encoder_decoder(num_layers=1, num_decoder_layers=1)
    models = [engine(config, scale=scale) for scale in (0.7, 0.72)]
    random = np.random.default_rng(2)
    mask = KeyPadding(jnp.arange(6)[None, :] < jnp.array([6, 4])[:, None])
    memories = [random.normal(size=(2, 6, 20)).astype(np.float32) for _ in models]
    encoder_outputs = [(jnp.asarray(memory), mask) for memory in memories]
    prompts = prompts_of(1, 2)
    plain = written(models[0], prompts, encoder_outputs=encoder_outputs[0])
    model = SpeculativeEngine(*models, 2)
    found, other = (
        written(model, prompts, encoder_outputs=encoder_outputs[0], draft_encoder_outputs=own)
        for own in encoder_outputs
    )
    assert_same(found, plain)
    assert found.accepted.sum() > 0
    assert_same(other, plain)


@pytest.mark.more
@pytest.mark.slow
def test_a_mesh_writes_the_same():
    config = tiny(**ONE_LAYER | {"vocab_size": 32, "num_heads": 2, "num_kv_heads": 2})
    mesh = make_mesh(MeshConfig(data=2, tensor=2))
    target, draft = (engine_of(config, mesh, scale=scale) for scale in (0.7, 0.72))
    plain = written(engine(config), PROMPTS)
    assert_same(written(target, PROMPTS), plain)
    assert_same(written(SpeculativeEngine(target, draft, 2), PROMPTS), plain)


def test_positions_may_not_change_what_was_read():
    position = RoPE(theta=100.0, scaling=DynamicNTK(factor=2.0, original_max_length=16))
    target, draft = engine(tiny(**ONE_LAYER, position=position)), engine(FAR, seed=5)
    prompts, keys = prompts_of(12, 3), row_keys(0, np.arange(2))
    for models, name in (((target, draft), "target"), ((draft, target), "draft")):
        with pytest.raises(ConfigError, match=rf"{name}: with 17 tokens \(row 0\).*ask for 4 new"):
            SpeculativeEngine(*models, 3).prefill(prompts, 5, keys=keys)
    # Up to there it is as any other model.
    assert speculative(target, draft).prefill(prompts, 4, keys=keys).active.all()


def test_what_does_not_fit_is_an_error():
    target, draft = engine(LEARNED), engine(ONE)
    with pytest.raises(ConfigError, match="has 7 tokens, and that of the target has 31"):
        SpeculativeEngine(target, engine(SMALL), 3)
    for proposals in (0, 512, 2.5, True, "2", None):
        with pytest.raises(ConfigError, match=r"proposals = .*: must be an integer from 1 to 511"):
            SpeculativeEngine(target, draft, proposals)
    assert SpeculativeEngine(target, draft, np.int64(2)).proposals == 2
    for models, name in (((target, draft), "target"), ((draft, target), "draft")):
        model = SpeculativeEngine(*models, 3)
        assert model.max_length == 40
        with pytest.raises(ConfigError, match=f"{name}: max_new_tokens = 29: .* the model has 40"):
            model.prefill(PROMPTS, 29, keys=row_keys(0, np.arange(4)))
    config = tiny(**ONE_LAYER, vocab_size=32)
    elsewhere = engine_of(config, make_mesh(MeshConfig(data=2)))
    with pytest.raises(ConfigError, match="mesh of the target"):
        SpeculativeEngine(engine(config), elsewhere, 3)
