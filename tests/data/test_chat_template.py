import json

import pytest
from chat_cases import NAMED
from tokenizer_folders import make
from tokenizers import Tokenizer, models

from jaxformer.data.chat.template import Conversation, RenderRequest, read_chat_template
from jaxformer.errors import ArgumentError, DataError

CHATML, LLAMA_2 = NAMED["chatml"], NAMED["llama2"]
OTHERS = """{{ messages | tojson }}|{{ messages[0] | tojson(indent=2) }}|{{ unknown }}|
{{- strftime_now('%Y') }}|{{ dict(a=1) | tojson }}|{{ [pad_token, unk_token, image_token] }}|
{% for x in range(9) %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% if tools is not none or documents is not none %}
    {{ raise_exception('there are no tools') }}
{% endif %}
{%- macro turn(role, content) %}
{{ '<start_of_turn>' ~ role }}
{{ content | trim ~ '<end_of_turn>' }}
{% endmacro %}
{%- set found = namespace(system='') %}
{% for message in messages %}
    {%- if message.role == 'system' %}
        {%- set found.system = message.content ~ '\\n\\n' %}
        {%- continue %}
    {%- endif %}
    {%- generation %}
{{ turn(message.role, (found.system if loop.last) ~ message.content) }}
    {%- endgeneration %}
{% endfor %}

"""

TEMPLATES = {"chatml": CHATML, "llama 2": LLAMA_2, "others": OTHERS}
CHATS = [
    [{"role": "user", "content": " Is 1 < 2 & \"2\" > '1'? "}],
    [
        {"role": "system", "content": "Du bist höflich."},
        {"role": "user", "content": "日本 🙂\n"},
        {"role": "assistant", "content": " ja "},
        {"role": "user", "content": "{{ bos_token }}"},
    ],
]
TOKENS = {
    "bos_token": "<s>",
    "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "special": True},
    "image_token": "<image>",
    "pad_token": None,
    "add_bos_token": True,
}


def save(folder, template=None, **settings):
    folder.mkdir(exist_ok=True)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast"} | TOKENS | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


@pytest.mark.torch
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_chat_is_written_as_transformers_writes_it(tmp_path, name):
    from transformers import AutoTokenizer

    save(tmp_path, TEMPLATES[name])
    Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_chat_template(tmp_path)
    for chat in CHATS:
        for prompt in (False, True):
            text = theirs.apply_chat_template(chat, add_generation_prompt=prompt, tokenize=False)
            assert ours.render(chat, add_generation_prompt=prompt) == text
            assert text.strip()


def test_a_template_knows_the_special_tokens_and_nothing_is_escaped(tmp_path):
    save(tmp_path, LLAMA_2)
    chat = read_chat_template(tmp_path)
    assert chat.special_tokens == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "image_token": "<image>",
    }
    assert chat.render(CHATS[1][:3]) == (
        "<s>[INST] <<SYS>>\nDu bist höflich.\n<</SYS>>\n\n日本 🙂 [/INST] ja </s>"
    )
    assert chat.render([{"role": "user", "content": "<b>&"}]) == "<s>[INST] <b>& [/INST]"


@pytest.mark.torch
@pytest.mark.parametrize("in_files", [False, True])
@pytest.mark.quick("True")
def test_a_chat_with_tools_has_the_template_for_them(tmp_path, in_files):
    from transformers import AutoTokenizer

    default, special = "\n{{ bos_token }}{{ tools }} \n  ", "\n  {% if tools %}\n{{ tools }}\n\n"
    special += "{% endif %}\n\n"
    named = {"default": default, "tool_use": special, "rag": "x"}
    stored = [{"name": name, "template": text} for name, text in named.items()]
    save(tmp_path, default if in_files else None, **({} if in_files else {"chat_template": stored}))
    if in_files:
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(special)
    Tokenizer(models.BPE({"a": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_chat_template(tmp_path)
    for tools in (None, [], [{"type": "function"}]):
        (found,) = ours.render_batch([RenderRequest(Conversation(CHATS[0], tools))])
        assert found.text == theirs.apply_chat_template(CHATS[0], tools=tools, tokenize=False)


@pytest.mark.torch
def test_special_tokens_of_the_class_count(tmp_path):
    from transformers import AutoTokenizer

    make(tmp_path, "llama_first")
    (tmp_path / "chat_template.jinja").write_text("{{ bos_token ~ messages[0].content }}")
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), read_chat_template(tmp_path)
    text = theirs.apply_chat_template(CHATS[0], tokenize=False)
    assert ours.render(CHATS[0]) == text
    assert text.startswith("<s>")


def test_an_answer_is_asked_for_unless_it_is_not(tmp_path):
    save(tmp_path, CHATML)
    chat = read_chat_template(tmp_path)
    message = {"role": "user", "content": "Hi"}
    written = "<|im_start|>user\nHi<|im_end|>\n"
    assert chat.render([message]) == written + "<|im_start|>assistant\n"
    assert chat.render([message], add_generation_prompt=False) == written


def test_where_a_template_is_kept(tmp_path):
    message = [{"role": "user", "content": "Hi"}]
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "list"}]
    assert read_chat_template(tmp_path) is None
    save(tmp_path)
    assert read_chat_template(tmp_path) is None
    (tmp_path / "chat_template.json").write_text('{"chat_template": "json"}')
    assert read_chat_template(tmp_path).render(message) == "json"
    save(tmp_path, chat_template="text")
    assert read_chat_template(tmp_path).render(message) == "text"
    save(tmp_path, chat_template=named)
    assert read_chat_template(tmp_path).render(message) == "list"
    save(tmp_path, template="jinja", chat_template=named)
    found = read_chat_template(tmp_path)
    assert found.render(message) == "jinja"
    assert found.file == tmp_path / "chat_template.jinja"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for x in messages %}\n{{ x }", "line 2 of the chat template: unexpected '}'"),
        ("{{ messages | sideways }}", "line 1 of the chat template: No filter named 'sideways'"),
        ("{% generation %}", "Unexpected end of template"),
    ],
)
def test_a_broken_template_is_an_error_that_names_the_file(tmp_path, template, words):
    save(tmp_path, template)
    with pytest.raises(DataError, match=r"chat_template\.jinja: ") as error:
        read_chat_template(tmp_path)
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('no system please') }}", "no system please"),
        ("{{ messages[0].content + 3 }}", "str"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
    ],
)
def test_a_template_that_refuses_says_why(tmp_path, template, words):
    save(tmp_path, template)
    with pytest.raises(DataError, match=r"chat_template\.jinja: the template refused") as error:
        read_chat_template(tmp_path).render(CHATS[0])
    assert words in str(error.value)


TIME, MEMORY = "longer than 2 seconds", "needs more than 128 MB of memory"
# What takes all the time or memory there is, as it compiles or as it renders.
BOMBS = {
    "loops": (
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        TIME,
    ),
    "power": ("{{ (messages | length + 1) ** (10 ** 9) }}", f"({TIME}|{MEMORY})"),
    "product": ("{{ 'a' * (10 ** 9) }}", MEMORY),
    "text": ("{{ messages[0].content * (10 ** 6) }}", "more than 10,000,000 characters"),
    "doubling": (
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}"
        "{% endfor %}",
        MEMORY,
    ),
    "parentheses": ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "nested too deeply"),
    "macro": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested too deeply"),
    "recursive": (
        "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
        "nested too deeply",
    ),
    "file": ("a" * 10**6 + "a", "at most 1,000,000"),
}


@pytest.mark.more
@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.quick("loops", "doubling", "macro", "text", "file")
def test_a_template_without_end_is_stopped(tmp_path, name):
    template, words = BOMBS[name]
    save(tmp_path, template)
    with pytest.raises(DataError, match=rf"chat_template\.jinja: .*{words}"):
        read_chat_template(tmp_path).render(CHATS[0])


def test_a_stopped_template_does_no_harm_to_the_next(tmp_path):
    save(tmp_path, "{% if messages | length > 1 %}{{ 'a' * (messages | length) ** 15 }}{% endif %}")
    chat = read_chat_template(tmp_path)
    for _ in range(2):
        with pytest.raises(DataError, match="memory"):
            chat.render(CHATS[1])
        assert chat.render(CHATS[0]) == ""


def test_messages_that_json_does_not_know_are_refused(tmp_path):
    save(tmp_path, CHATML)
    with pytest.raises(ArgumentError, match="messages: must be lists"):
        read_chat_template(tmp_path).render([{"role": "user", "content": b"bytes"}])


@pytest.mark.parametrize(
    "stored", [3, {}, [], ["text"], [{"name": "rag", "template": "a"}], [{"name": "default"}]]
)
def test_something_else_in_place_of_a_template_is_an_error(tmp_path, stored):
    save(tmp_path, chat_template=stored)
    with pytest.raises(DataError, match=r'tokenizer_config\.json: "chat_template" must be'):
        read_chat_template(tmp_path)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "chat_template.json").write_text("{")
    with pytest.raises(DataError, match=r"chat_template\.json: not valid JSON"):
        read_chat_template(tmp_path)
    (tmp_path / "chat_template.json").write_text("[" * 10**5)
    with pytest.raises(DataError, match=r"chat_template\.json: not valid JSON"):
        read_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"chat_template\.jinja: must be UTF-8"):
        read_chat_template(tmp_path)


def test_many_chats_are_written_as_each_alone_is(tmp_path):
    save(tmp_path, CHATML)
    chat = read_chat_template(tmp_path)
    asked = [(messages, prompt) for messages in CHATS for prompt in (False, True)]
    found = chat.render_batch(RenderRequest(Conversation(m), prompt) for m, prompt in asked)
    alone = [chat.render(messages, add_generation_prompt=prompt) for messages, prompt in asked]
    assert [each.text for each in found] == alone


@pytest.mark.slow
def test_the_limits_are_those_of_each_chat_and_name_its_line(tmp_path):
    # A tenth of a second of work for each short chat, and no end for a long one.
    save(
        tmp_path,
        "{% for a in range(3000 if messages | length < 3 else 99999) %}{% for b in range(1000 if "
        "messages | length < 3 else 99999) %}"
        "{% endfor %}{% endfor %}done",
    )
    chat = read_chat_template(tmp_path)
    short = [RenderRequest(Conversation(CHATS[0], where=f"f:{line}")) for line in range(1, 31)]
    assert [rendered.text for rendered in chat.render_batch(short)] == ["done"] * 30
    long = RenderRequest(Conversation(CHATS[1], where="f:31"))
    with pytest.raises(DataError, match=r"f:31: .*longer than 2 seconds"):
        chat.render_batch([*short[:2], long, *short])


def test_the_length_of_prefixes(tmp_path):
    save(tmp_path, CHATML)
    chat = read_chat_template(tmp_path)
    asked = ((2, False), (2, True), (3, True), (4, False))
    (found,) = chat.render_batch([RenderRequest(Conversation(CHATS[1]), prefixes=asked)])
    texts = [chat.render(CHATS[1][:n], add_generation_prompt=prompt) for n, prompt in asked]
    # The third message is not followed by an answer.
    assert found.prefixes == (len(texts[0]), len(texts[1]), None, len(texts[3]))
    assert found.text.startswith(texts[1])
    assert found.text == texts[3]
    save(tmp_path, "{{ messages | length }}")
    (found,) = read_chat_template(tmp_path).render_batch(
        [RenderRequest(Conversation(CHATS[1]), prefixes=((2, False), (4, False)))]
    )
    assert found.prefixes == (None, 1)
