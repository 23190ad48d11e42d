"""`jaxformer.generate`: prompts."""

import json
from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from generate_cases import NEW, padded_on_the_right, prompts, theirs, with_values

import jaxformer
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.generation.config import GenerationConfig
from jaxformer.generation.pure import generate_rows

MASK = np.ones((3, 9), int)


@pytest.mark.torch
def test_an_answer_may_begin_with_what_is_given(t5):
    inputs = prompts(131) | {"decoder_input_ids": np.array([[0, 9], [0, 4], [0, 4]])}
    options = {"max_new_tokens": NEW, "decoder_start_token_id": 0}
    expected = theirs(t5.folder, "T5ForConditionalGeneration", inputs, **options)
    found = jaxformer.generate(t5, inputs, max_new_tokens=NEW)["sequences"]
    np.testing.assert_array_equal(found, expected.sequences.numpy())


def test_padding_on_the_right_is_the_same(gpt2):
    left = prompts(131)
    both = (left, padded_on_the_right(left))
    one, other = (jaxformer.generate(gpt2, each, max_new_tokens=NEW) for each in both)
    np.testing.assert_array_equal(one["sequences"][:, 9:], other["sequences"][:, 9:])
    np.testing.assert_array_equal(one["sequences"][:, :9], left["input_ids"])


@pytest.mark.parametrize("beams", [1, 2])
@pytest.mark.first("1")
def test_a_pure_function_gives_the_same_tokens(gpt2, beams):
    ids, mask = np.arange(3, 15).reshape(2, 6), np.ones((2, 6), int)
    mask[0, :2] = mask[1, -1] = 0
    options = {"max_new_tokens": 4, "num_beams": beams, "eos_token_id": 7}
    inputs = {"input_ids": ids, "attention_mask": mask}
    expected = jaxformer.generate(gpt2, inputs, **options)["sequences"]
    config = GenerationConfig(**options)
    run = jax.jit(partial(generate_rows, gpt2.model, config=config, key=jax.random.key(0)))
    found = np.asarray(run(ids, mask)["sequences"])
    assert found.shape == (2, 10)
    assert np.array_equal(found[:, : expected.shape[1]], expected)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["gpt2", "t5"])
@pytest.mark.quick("t5")
def test_prompts_are_texts_ids_or_arrays(name, request):
    model = request.getfixturevalue(name)
    texts, rows = ["the dog runs", "dog"], [[1, 2, 4], [2]]
    left = name == "gpt2"
    mask = np.array([[1, 1, 1], [0, 0, 1] if left else [1, 0, 0]])
    ids = np.array([[1, 2, 4], [0, 0, 2] if left else [2, 0, 0]])
    asked = {"max_new_tokens": 4, "pad_token_id": 0}
    expected = jaxformer.generate(model, {"input_ids": ids, "attention_mask": mask}, **asked)
    for inputs in (texts, rows, [np.array(row) for row in rows]):
        found = jaxformer.generate(model, inputs, **asked)
        np.testing.assert_array_equal(found["sequences"], expected["sequences"])
        assert ("texts" in found) == (inputs is texts)
    one = jaxformer.generate(model, "the dog runs", **asked)
    np.testing.assert_array_equal(one["sequences"], expected["sequences"][:1])
    new = one["sequences"][0, 3 if left else 1 :]
    assert one["texts"] == [model.tokenizer.decode(new).strip()]


@pytest.mark.more
def test_where_an_answer_begins_is_said_by_the_files(t5):
    def beginning(file, recommended=None):
        (t5.folder / "generation_config.json").write_text(json.dumps(recommended or {}))
        model = with_values(t5, file)
        found = jaxformer.generate(model, [[5, 6]], max_new_tokens=1, eos_token_id=None)
        return found["sequences"][0, 0]

    assert beginning({"decoder_start_token_id": 3}) == 3
    assert beginning({"decoder_start_token_id": 3}, {"decoder_start_token_id": 4}) == 4
    assert beginning({"decoder_start_token_id": 3}, {"decoder_start_token_id": None}) == 3
    assert beginning({"decoder_start_token_id": None, "bos_token_id": 6}) == 6
    for wrong in (None, -1, 131, 10**40, "<s>", [1, 2]):
        with pytest.raises(ConfigError, match=r"decoder_start_token_id = .*: must be a token"):
            beginning({"decoder_start_token_id": wrong})


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (5, {}, "inputs = 5: must be a text"),
        ([[1], []], {}, "prompt 1 is empty"),
        pytest.param("", {}, "prompt 0 is empty", marks=pytest.mark.torch),
        ([1.5], {}, "prompt 0 must be a list of integers"),
        ([131], {}, "input_ids holds 131"),
        ([-1], {}, "input_ids holds -1"),
        ([2**32 + 1], {}, "input_ids holds 4294967297"),
        ({"input_ids": prompts(131)["input_ids"][0]}, {}, r"input_ids must have the shape \[B, T"),
        (prompts(131) | {"attention_mask": MASK[:, 1:]}, {}, "attention_mask has shape"),
        (prompts(131) | {"attention_mask": 0 * MASK}, {}, "row 0 is empty"),
        (prompts(131) | {"position_ids": 0 * MASK}, {}, "position_ids: must be left out"),
        (prompts(131) | {"pixels": np.zeros(3)}, {}, "pixels"),
        (prompts(131), {"max_new_tokens": 12}, "prompt of 9 tokens.*21 positions.*model has 20"),
        ([1], {"temprature": 1.0}, "temprature is not known; did you mean 'temper"),
        ([1], {"num_beams": 10**8}, r"100000000 beams .* GB of memory"),
        ([1], {"temperature": 1, "num_return_sequences": 10**13}, "num_return_sequences = 1000000"),
        ([1], {"eos_token_id": [1, 131]}, "eos_token_id"),
        ([1], {"stop_strings": ["."], "num_beams": 2}, "stop_strings"),
        ([1], {"stop_strings": ["."], "slide": True}, "stop_strings"),
        ([1], {"slide": "yes"}, "slide = 'yes': must be True or False"),
        ([1], {"output_scores": 1}, "output_scores = 1: must be True or False"),
        ([1], {"draft": "folder"}, "draft is a str: must be a model"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(gpt2, inputs, options, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        jaxformer.generate(gpt2, inputs, **({"max_new_tokens": 2} | options))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_mask": 0 * MASK}, "row 0 is empty"),
        ({"decoder_input_ids": MASK[:2]}, "decoder_input_ids has 2 rows, and input_ids has 3"),
        ({"decoder_attention_mask": MASK}, "without decoder_input_ids"),
    ],
)
def test_what_an_encoder_decoder_cannot_read(t5, changes, message):
    with pytest.raises(DataError, match=message):
        jaxformer.generate(t5, prompts(131) | changes, max_new_tokens=2)


def test_every_function_asks_for_a_model(gpt2, tmp_path):
    inputs = prompts(131)
    for call in (
        lambda: jaxformer.generate(inputs, gpt2),
        lambda: jaxformer.score(inputs, gpt2, []),
        lambda: jaxformer.chat(inputs, [{"role": "user", "content": "a"}]),
        lambda: jaxformer.forward(inputs, gpt2),
        lambda: jaxformer.gradients(inputs, gpt2),
        lambda: jaxformer.save(inputs, tmp_path / "out"),
    ):
        with pytest.raises(ArgumentError, match="pretrained is a dict: must be a model, as jaxfo"):
            call()
    with pytest.raises(ArgumentError, match="output_hidden_states = 'all'"):
        jaxformer.forward(gpt2, inputs, output_hidden_states="all")
    with pytest.raises(DataError, match="needs labels"):
        jaxformer.gradients(gpt2, inputs)
    bare = replace(gpt2, folder=None)
    with pytest.raises(DataError, match="no tokenizer"):
        jaxformer.generate(bare, "the dog")
    with pytest.raises(DataError, match=r"stop_strings = .*no tokenizer"):
        jaxformer.generate(bare, [[1]], stop_strings=["."], max_new_tokens=2)
