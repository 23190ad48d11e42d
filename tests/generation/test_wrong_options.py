"""What a user may get wrong about generation: each is named before anything is allocated."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from generate_cases import engine_of
from tiny_models import tiny, tiny_encoder_decoder

from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.functional import Learned
from jaxformer.generation import engine as engine_module
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.decode.processors import History, process
from jaxformer.generation.engine import available_bytes, num_bytes, row_keys
from jaxformer.generation.inputs import Prompts, rows_of, texts_of, token_ids
from jaxformer.generation.scoring import Scorer
from jaxformer.generation.tokens import repeat_rows
from jaxformer.hub.inputs import padded_prompts

LEARNED = tiny(num_layers=1, position=Learned(max_length=16))
PROMPTS = Prompts.of_rows([[3, 4, 5], [6]])
KEYS = row_keys(0, np.arange(2))


@pytest.fixture(scope="module", params=[tiny, tiny_encoder_decoder], ids=["decoder", "both"])
def engine(request):
    return engine_of(request.param(num_layers=1))


def encoder_outputs_of(engine, rows=2):
    """What the decoder of an encoder-decoder reads."""
    config = engine.config
    return () if config == tiny(num_layers=1) else (jnp.zeros((rows, 5, config.model_dim)),)


@pytest.fixture
def prefill(engine):
    """The engine's, with the keys of two rows and what their decoder reads."""
    return partial(engine.prefill, keys=KEYS, encoder_outputs=encoder_outputs_of(engine))


# Options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("integer", [np.int64, np.int32, np.uint8, np.array, jnp.int32])
@pytest.mark.parametrize("number", [np.float32, np.float64, np.array, jnp.float32])
def test_scalars_of_numpy_and_jax_are_pythons(integer, number):
    ours = {"max_new_tokens": 2, "seed": 7, "temperature": 0.5, "do_sample": True}
    ours["eos_token_id"] = (3, 4)
    theirs = {
        "max_new_tokens": integer(2),
        "seed": integer(7),
        "temperature": number(0.5),
        "do_sample": np.bool_(True),
        "eos_token_id": (integer(3), integer(4)),
    }
    assert GenerationConfig(**theirs) == GenerationConfig(**ours)
    assert type(GenerationConfig(**theirs).max_new_tokens) is int
    assert hash(GenerationConfig(**theirs).processors()) == hash(
        GenerationConfig(**ours).processors()
    )
    theirs["eos_token_id"] = np.array([3, 4])
    assert GenerationConfig.of({}, theirs) == GenerationConfig.of(
        {}, ours | {"eos_token_id": [3, 4]}
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("eos_token_id", (3, 31)),
        ("pad_token_id", 31),
        ("bad_words_ids", ((3,), (4, 40))),
        ("suppress_tokens", (31,)),
        ("forced_bos_token_id", 31),
        ("forced_eos_token_id", 99),
    ],
)
def test_a_token_that_the_vocabulary_lacks(field, value):
    decoding = GenerationConfig(**{field: value})
    decoding.check_vocabulary(100)
    with pytest.raises(ConfigError, match=rf"{field} = .*: must be of the model's vocabulary, 0"):
        decoding.check_vocabulary(31)


def test_a_file_that_recommends_nonsense_is_named_unless_another_value_is_given():
    for recommended in ({"pad_token_id": -1}, {"eos_token_id": [1, "a"]}, {"num_beams": 0}):
        (name,) = recommended
        with pytest.raises(ConfigError, match=rf"generation_config.json .* recommends {name} = "):
            GenerationConfig.of(recommended, {})
        GenerationConfig.of(recommended, {name: 1})


# Memory -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("new", "beams"), [(10**12, 1), (2**31 - 9, 1), (8, 10**10)])
def test_what_memory_cannot_hold_is_refused_at_once(prefill, new, beams):
    with pytest.raises(ConfigError, match=rf"max_new_tokens = {new}: .* GB of memory, and there"):
        prefill(PROMPTS, new, num_beams=beams)


def test_the_memory_is_that_of_the_state(prefill, monkeypatch):
    state = prefill(PROMPTS, 100)
    needed = num_bytes((state.cache, state.history, state.log_probs)) + 2 * 31 * 4
    for room in (needed, needed - 1):
        monkeypatch.setattr(engine_module, "available_bytes", lambda devices, room=room: room)
        if room == needed:
            prefill(PROMPTS, 100)
        else:
            with pytest.raises(ConfigError, match=r"2 rows of 3 \+ 100 tokens need 0.0 GB"):
                prefill(PROMPTS, 100)


def test_copies_that_memory_cannot_hold():
    assert available_bytes(jax.devices()) > 10**8
    with pytest.raises(ConfigError, match=r"num_return_sequences = 1000000000000: .* GB"):
        repeat_rows(PROMPTS, 10**12)


# Arrays -----------------------------------------------------------------------------------------


def test_arrays_that_do_not_fit_are_named(engine, prefill):
    with pytest.raises(AssertionError, match=r"keys has shape \(3,\): .* \[B\] with B = 2"):
        prefill(PROMPTS, 4, keys=row_keys(0, np.arange(3)))
    with pytest.raises(AssertionError, match="lengths has shape"):
        prefill(PROMPTS._replace(lengths=np.ones(3, np.int32)), 4)
    if other := encoder_outputs_of(engine, rows=3):
        with pytest.raises(AssertionError, match=r"encoder_outputs has shape \(3, 5, "):
            prefill(PROMPTS, 4, encoder_outputs=other)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda logits: logits[:, :-1], r"what mine returns has shape \(2, 6\)"),
        (lambda logits: logits.sum(-1), r"what mine returns has shape \(2,\)"),
        (lambda logits: logits.astype(jnp.bfloat16), "what mine returns has dtype bfloat16"),
        (lambda logits: logits > 0, "what mine returns has dtype bool"),
        (lambda logits: None, "what mine returns has type NoneType"),
    ],
)
def test_a_processor_of_the_users_own_returns_logits(change, message):
    def mine(logits, history):
        return change(logits)

    ones = jnp.ones(2, jnp.int32)
    history = History(jnp.zeros((2, 5), jnp.int32), ones, ones, ones + 3)
    logits = jnp.zeros((2, 7))
    np.testing.assert_array_equal(process((lambda x, _: x + 1,), logits, history), logits + 1)
    with pytest.raises(AssertionError, match=message):
        jax.eval_shape(lambda x: process((mine,), x, history), logits)
    with pytest.raises(AssertionError, match="lengths has shape"):
        process((mine,), logits, history._replace(lengths=jnp.ones(3, jnp.int32)))


# Prompts ----------------------------------------------------------------------------------------


def test_texts_and_rows_in_every_form():
    assert texts_of("the dog") == ["the dog"]
    assert texts_of(["a", "b"]) == texts_of(np.array(["a", "b"])) == ["a", "b"]
    for inputs in ([], [1], np.zeros(2, int), 5, None, ["a", 1]):
        assert texts_of(inputs) is None
    for inputs in ([1, 2], np.array([1, 2]), jnp.array([1, 2]), (1, 2), [np.int64(1), 2]):
        assert [row.tolist() for row in rows_of(inputs)] == [[1, 2]]
    for inputs in ([[1, 2], [3]], [np.array([1, 2]), [3]]):
        assert [row.tolist() for row in rows_of(inputs)] == [[1, 2], [3]]
    left, right = (padded_prompts([[1, 2], [3]], 9, left=side) for side in (True, False))
    assert left["input_ids"].tolist() == [[1, 2], [9, 3]]
    assert right["input_ids"].tolist() == [[1, 2], [3, 9]]
    assert left["attention_mask"].tolist() == [[1, 1], [0, 1]]


@pytest.mark.parametrize(
    "inputs",
    [5, None, [], b"Hello", {1, 2}, np.zeros((1, 2, 3), int), ["a", 5], [1.5], [True], [[[1]]]],
    ids=repr,
)
def test_what_is_no_prompt_is_named(inputs):
    with pytest.raises((ArgumentError, DataError), match="inputs"):
        rows_of(inputs)


def test_tokens_are_lists_of_integers():
    assert token_ids("x", [1, 2]).tolist() == [1, 2]
    for value in (1, [1.0], [[1]], "text", [1, [2]], [10**30], None):
        with pytest.raises(DataError, match="x must be a list of integers"):
            token_ids("x", value)


# Continuations ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("continuations", "message"),
    [
        (5, "continuations = 5: must be"),
        ("ab", "continuations = 'ab': must be"),
        ([1, 2], "row 0 holds a int"),
        ([None, None], "row 0 holds a NoneType"),
        ([["text"], ["text"]], "continuation 0 of row 0 must be a list of integers"),
        ([[[1.5]], [[1]]], "continuation 0 of row 0 must be a list of integers, got float64"),
        ([[[1, [2]]], [[1]]], "continuation 0 of row 0 must be a list of integers"),
        ([[[1]]], "there are 1 lists, expected one for each of the 2 prompts"),
        ([[[1], []], [[1]]], "continuation 1 of row 0 is empty"),
        ([[[1]], [[4, 31]]], "continuation 0 of row 1: token 31 is not .* expected 0 to 30"),
        ([[[1]], [[-1]]], "token -1"),
        ([[[1]], [[1] * 17]], "row 1 needs 17 positions with its prompt of 1 tokens, .* has 16"),
    ],
)
def test_what_cannot_be_scored_is_named(continuations, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        Scorer(engine_of(LEARNED))(PROMPTS, continuations)
