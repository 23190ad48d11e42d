"""Tokens and answers of conversations, beside transformers' `apply_chat_template`."""

from functools import cache

import numpy as np
import pytest
from chat_cases import CHATS, TEMPLATES, TOKENIZERS, TOOLS, WITH_SYSTEM, WITH_TOOLS

from jaxformer.data.chat.encoder import ChatEncoder
from jaxformer.data.chat.template import read_chat_template

pytestmark = pytest.mark.torch


@cache
def tokenizer_of(name):
    return TOKENIZERS[name]()


def encoder(tokenizer, template, folder):
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return ChatEncoder(tokenizer.backend_tokenizer, read_chat_template(folder))


def theirs(tokenizer, messages, tools=None):
    found = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return found["input_ids"], found["assistant_masks"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_answers_are_those_of_transformers(tmp_path, name, kind):
    tokenizer = tokenizer_of(kind)
    ours = encoder(tokenizer, TEMPLATES[name], tmp_path)
    chats = [(chat, None) for chat in CHATS + (WITH_SYSTEM if name != "gemma" else [])]
    chats += [(WITH_TOOLS, TOOLS)] if name == "qwen" else []
    for messages, tools in chats:
        found = ours.encode(messages, tools)
        tokens, mask = theirs(tokenizer, messages, tools)
        np.testing.assert_array_equal(found.tokens, tokens)
        np.testing.assert_array_equal(found.is_answer, mask)
