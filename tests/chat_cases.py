"""Chat templates in the style of published ones, tokenizers of each kind, and conversations."""

import re
from importlib.util import find_spec
from pathlib import Path

from hf_checkpoints import byte_bpe, fast, unigram
from tokenizer_folders import BLANK_IN_FRONT, byte_fallback
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers

import jaxformer.data.chat

_NAMED = Path(jaxformer.data.chat.__file__).parent / "templates"

QWEN = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- generation %}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}
                {%- set call = call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.index0 == 0 or messages[loop.index0 - 1].role != 'tool' %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}"""

GEMMA = """{{ bos_token }}
{%- if messages[0].role == 'system' %}
    {{- raise_exception('there is no system role') }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<start_of_turn>model\\n' }}
        {%- generation %}
        {{- message.content | trim + '<end_of_turn>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- else %}
        {{- '<start_of_turn>' + message.role + '\\n' + message.content | trim }}
        {{- '<end_of_turn>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<start_of_turn>model\\n' }}
{%- endif %}"""

NAMED = {path.stem: path.read_text() for path in sorted(_NAMED.glob("*.jinja"))}
PLAIN = NAMED.pop("plain")
# The same turns in other words.
PHI = NAMED["chatml"].replace("<|im_start|>' + message.role + '", "<|' + message.role + '|>")
PHI = PHI.replace("<|im_start|>assistant", "<|assistant|>").replace("<|im_end|>", "<|end|>")
TEMPLATES = NAMED | {"qwen": QWEN, "gemma": GEMMA, "phi": PHI}

SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "<|user|>", "<|assistant|>", "<|end|>",
)  # fmt: skip
_ROLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}

# The templates that TRL ships, if it is installed.
_TRL = find_spec("trl")
STOCK = sorted(Path(_TRL.origin).with_name("chat_templates").glob("*.jinja")) if _TRL else []
STOCK_TOKENS = {
    "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>",
}  # fmt: skip

USER, SYSTEM, ASSISTANT, TOOL = "user", "system", "assistant", "tool"


def without_generation(template):
    """The same template without marks of what the assistant writes."""
    return re.sub(r"\{%(-?) (end)?generation %\}", r"{%\1 if true %}", template).replace(
        "{%- if true %}", ""
    )


def chat(*turns):
    """Messages of (role, content) pairs."""
    return [{"role": role, "content": content} for role, content in turns]


CHATS = [
    chat((USER, "She paints the red boat."), (ASSISTANT, "Nobody sells the lake.")),
    chat((USER, " Grüße aus Zürich 🙂\n"), (ASSISTANT, "日本 ja"), (USER, ""), (ASSISTANT, "x")),
    chat((USER, "a\n\n"), (ASSISTANT, "  b\n"), (USER, "\n\nc"), (ASSISTANT, ""), (USER, "?"),
         (ASSISTANT, "🙂👩‍👩‍👧 e\u0301")),
]  # fmt: skip
WITH_SYSTEM = [
    chat((SYSTEM, "Be brief."), (USER, "Will the robot find it?"), (ASSISTANT, "No.")),
    chat((SYSTEM, "Ünïcode\n"), (USER, "1"), (ASSISTANT, "two three"), (USER, "4"),
         (ASSISTANT, " 5 ")),
]  # fmt: skip
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "depth",
            "description": "The depth of a lake in metres.",
            "parameters": {
                "type": "object",
                "properties": {"lake": {"type": "string", "description": "Its <name> & more"}},
                "required": ["lake"],
            },
        },
    }
]
WITH_TOOLS = [
    {"role": USER, "content": "How deep is the frozen lake?"},
    {
        "role": ASSISTANT,
        "content": None,
        "tool_calls": [
            {"type": "function", "function": {"name": "depth", "arguments": {"lake": "frozen é"}}},
            {"type": "function", "function": {"name": "depth", "arguments": {"lake": "red"}}},
        ],
    },
    {"role": TOOL, "name": "depth", "content": "40"},
    {"role": TOOL, "name": "depth", "content": '{"error": "<none>"}'},
    {"role": ASSISTANT, "content": "40 metres."},
]


def _metaspace():
    return byte_fallback(
        "<unk>",
        *SPECIAL,
        vocab_size=600,
        pre_tokenizer=pre_tokenizers.Metaspace(prepend_scheme="first", split=False),
        decoder=decoders.Metaspace(prepend_scheme="first"),
    )


def _legacy():
    """Llama 2's: blanks and the one in front are made by the normalizer, before each piece."""
    rust = _metaspace()
    rust.pre_tokenizer = None
    rust.normalizer, rust.decoder = BLANK_IN_FRONT["normalizer"], BLANK_IN_FRONT["decoder"]
    return rust


def _added():
    """Many added tokens: some strip blanks around them, some are normalised, some are ordinary."""
    rust, _ = byte_bpe(("<s>", "</s>"))
    rust.normalizer = normalizers.Lowercase()
    rust.add_tokens([AddedToken("    ", normalized=False), AddedToken("the red", normalized=True)])
    rust.add_tokens([AddedToken(f"<unused{number}>") for number in range(300)])
    rust.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "<tool_call>")])
    strips = {"<|end|>": {"rstrip": True}, "<|user|>": {"rstrip": True}}
    strips |= {"<|assistant|>": {"rstrip": True}, "<end_of_turn>": {"lstrip": True}}
    strips |= {"<|im_end|>": {"normalized": True}, "<|eot_id|>": {"normalized": True}}
    rust.add_special_tokens([AddedToken(name, **strips.get(name, {})) for name in SPECIAL[2:]])
    rust.add_special_tokens([AddedToken(f"<|reserved_{number}|>") for number in range(200)])
    return rust


_WITH_UNKNOWN = _ROLES | {"unk_token": "<unk>"}
TOKENIZERS = {
    "bytes": lambda: fast(byte_bpe(SPECIAL)[0], **_ROLES),
    "metaspace": lambda: fast(_metaspace(), **_WITH_UNKNOWN),
    "legacy": lambda: fast(_legacy(), **_WITH_UNKNOWN),
    "unigram": lambda: fast(unigram("<unk>", *SPECIAL)(), **_WITH_UNKNOWN),
    "added": lambda: fast(_added(), **_ROLES),
}
