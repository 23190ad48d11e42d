"""Messages in, messages out: `jaxformer.generate`, `chat` and the functions that look inside."""

import json

import numpy as np
import pytest
from chat_cases import PLAIN, QWEN, TOKENIZERS, TOOLS, WITH_TOOLS
from saved_folders import save_tiny

import jaxformer
from jaxformer.errors import ArgumentError, DataError

pytestmark = pytest.mark.torch

ASKED = WITH_TOOLS[:1]
LATER = [*ASKED, {"role": "assistant", "content": "40 m."}, {"role": "user", "content": "And now?"}]
CALL = '<tool_call>\n{"name": "depth", "arguments": {"lake": "red"}}\n</tool_call><|im_end|>'


@pytest.fixture(scope="module")
def tokenizer():
    return TOKENIZERS["bytes"]()


def saved(folder, tokenizer, template):
    size = {"vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    save_tiny("llama", folder, "CausalLM", **size)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    return folder


@pytest.fixture(scope="module")
def model(tokenizer, tmp_path_factory):
    return jaxformer.load(saved(tmp_path_factory.mktemp("qwen"), tokenizer, QWEN))


def saying(tokenizer, text):
    """Options with which any model says a text: each token is made probable after those before."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    biases = [(ids[: n + 1], 1e4 * (n + 1)) for n in range(len(ids))]
    return {"sequence_bias": biases, "max_new_tokens": len(ids) + 5}


@pytest.mark.slow
def test_messages_are_the_prompt_of_transformers_and_end_with_the_turn(model, tokenizer):
    prompts = [
        tokenizer.apply_chat_template(each, tools=TOOLS, add_generation_prompt=True)["input_ids"]
        for each in (ASKED, LATER)
    ]
    options = saying(tokenizer, "So é.<|im_end|>")
    found = jaxformer.generate(model, [ASKED, LATER], tools=TOOLS, **options)
    eos = (1, tokenizer.convert_tokens_to_ids("<|im_end|>"))
    same = jaxformer.generate(model, prompts, **options, eos_token_id=eos)
    np.testing.assert_array_equal(found["sequences"], same["sequences"])
    assert found["texts"] == ["So é."] * 2
    assert found["messages"] == [{"role": "assistant", "content": "So é."}] * 2


@pytest.mark.more
def test_an_end_token_that_is_given_stays_alone(model, tokenizer):
    options = saying(tokenizer, "So.<|im_end|>x") | {"eos_token_id": None}
    assert len(jaxformer.chat(model, ASKED, **options)["content"]) > len("So.x")


@pytest.mark.slow
def test_calls_are_answered_by_tools_and_the_dialogue_goes_on(model, tokenizer):
    messages = [*ASKED]
    for number in range(2):
        messages.append(jaxformer.chat(model, messages, tools=TOOLS, **saying(tokenizer, CALL)))
        (call,) = messages[-1]["tool_calls"]
        assert call["function"] == {"name": "depth", "arguments": {"lake": "red"}}
        assert call["id"] == f"call{number:05d}"
        known = {"name": call["function"]["name"], "tool_call_id": call["id"]}
        messages.append({"role": "tool", **known, "content": "40"})
    answer = jaxformer.chat(model, messages, tools=TOOLS, **saying(tokenizer, "40 m.<|im_end|>"))
    assert answer == {"role": "assistant", "content": "40 m."}
    # Without tools there is nothing to call.
    text = jaxformer.chat(model, ASKED, **saying(tokenizer, CALL))
    assert text == {"role": "assistant", "content": CALL.removesuffix("<|im_end|>")}


@pytest.mark.slow
def test_several_answers_to_several_conversations(model, tokenizer):
    options = saying(tokenizer, CALL) | {"num_return_sequences": 2, "do_sample": True}
    found = jaxformer.generate(model, [ASKED, LATER, ASKED], tools=TOOLS, **options)
    assert len(found["messages"]) == len(found["texts"]) == len(found["sequences"]) == 6
    assert all("tool_calls" in message for message in found["messages"])
    assert json.loads(json.dumps(found["messages"])) == found["messages"]


@pytest.mark.slow
def test_looking_inside_reads_messages(model, tokenizer):
    rows = [
        tokenizer.apply_chat_template(each, add_generation_prompt=True)["input_ids"]
        for each in (ASKED, LATER)
    ]
    ids, mask = np.zeros((2, 2, max(map(len, rows))), int)
    for n, row in enumerate(rows):
        ids[n, : len(row)], mask[n, : len(row)] = row, 1
    name, inputs = "blocks.1.hook_resid_post", {"input_ids": ids, "attention_mask": mask}
    outputs, cache = jaxformer.run_with_cache(model, [ASKED, LATER], name)
    expected, other = jaxformer.run_with_cache(model, inputs, name)
    np.testing.assert_array_equal(cache[name], other[name])
    np.testing.assert_array_equal(outputs["logits"], expected["logits"])
    assert jaxformer.forward(model, ASKED)["logits"].shape[:2] == (1, len(rows[0]))
    assert jaxformer.activation_names(model, ASKED, name)[name].shape[1] == len(rows[0])
    prompts = [ASKED], {"input_ids": [rows[0]]}
    of_messages, of_ids = (jaxformer.score(model, each, [[[5, 6]]])[0][0] for each in prompts)
    np.testing.assert_array_equal(of_messages.token_log_probs, of_ids.token_log_probs)


def test_a_model_without_a_template_says_so(tokenizer, tmp_path):
    folder = saved(tmp_path, tokenizer, None)
    model = jaxformer.load(folder)
    for function in (jaxformer.generate, jaxformer.chat, jaxformer.run_with_cache):
        with pytest.raises(DataError, match="has no chat template"):
            function(model, ASKED)


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("Hello", {}, "messages = 'Hello'"),
        ([], {}, "messages ="),
        ([ASKED, LATER], {}, "messages ="),
        (ASKED, {"num_return_sequences": 2, "do_sample": True}, "num_return_sequences = 2"),
        (ASKED, {"tools": "depth"}, "tools = 'depth'"),
    ],
)
def test_what_chat_does_not_take(model, messages, options, message):
    with pytest.raises(ArgumentError, match=message):
        jaxformer.chat(model, messages, **options)


def test_tools_need_messages(model):
    with pytest.raises(ArgumentError, match="tools: must come with messages"):
        jaxformer.generate(model, "Hello", tools=TOOLS)


def test_a_template_for_text_alone_has_no_tools(tokenizer, tmp_path):
    model = jaxformer.load(saved(tmp_path, tokenizer, PLAIN))
    with pytest.raises(DataError, match="does not support tools"):
        jaxformer.chat(model, ASKED, tools=TOOLS)
