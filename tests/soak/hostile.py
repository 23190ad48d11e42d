"""What an attacker, a bad disk or a bad day makes of values, JSON and bytes."""

import json
import random
from collections.abc import Iterator
from typing import Any

VALUES = (
    *(None, True, False, 0, -1, 1, 2, 2.5, -0.0, 1e-45, 1e308, 10**9, 2**31, 2**63, 10**40),
    *(float("nan"), float("inf"), "", "2", "x", "None", [], [1], [[]], ["x"], {}, {"a": 1}),
    {"type": "x"},
    {"type": 5},
    {"type": "jaxformer.__main__.X"},
    "../../etc/passwd",
    "/dev/zero",
    "\u0000",
    "\ud800",
    "a" * 5000,
    "💥",
    {"rope_type": "yarn"},
    {"type": "os.path"},
    {"a": {"b": []}},
)
"""In the place of a value of JSON."""

TEXTS = (
    "",
    "0",
    "-1",
    "1",
    "2",
    "3",
    "7",
    "2.5",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e-45",
    "0x10",
    "4294967296",
    "99999999999999999999",
    "true",
    "False",
    "None",
    "null",
    "[]",
    "{}",
    "(1,",
    "RoPE",
    "rope",
    "ALiBi",
    "AdamW",
    "Lion",
    "float32",
    "float7",
    "int8",
    "auto",
    "*",
    "%s",
    "no/such/file",
    "..",
    "gs://bucket/run",
    "hf://x/y",
    "ñ",
    "💥" * 9,
    "a" * 5000,
    "a b",
    "-",
)
"""In the place of an option's value."""


def spoiled_bytes(whole: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Bytes that a disk, a copy or a program has damaged, and what was done to them."""
    size = len(whole)
    at = chance.randrange(size) if size else 0
    kind = chance.choice(("flip", "flip", "flip", "truncate", "zeros", "garbage", "append", "swap"))
    if kind == "truncate" or not size:
        return f"truncated to {at} bytes", whole[:at]
    if kind == "append":
        return "64 bytes appended", whole + chance.randbytes(64)
    if kind == "garbage":
        return "garbage of the same size", chance.randbytes(size)
    if kind == "zeros":
        page = at - at % 4096
        end = min(size, page + 4096)
        return f"zeros from {page}", whole[:page] + bytes(end - page) + whole[end:]
    if kind == "swap":
        half = size // 2
        return "halves swapped", whole[half:] + whole[:half]
    bit = chance.randrange(8)
    changed = bytes([whole[at] ^ (1 << bit)])
    return f"bit {bit} of byte {at} flipped", whole[:at] + changed + whole[at + 1 :]


def spoiled_json(data: Any, chance: random.Random) -> tuple[str, Any]:
    """JSON with one value replaced, removed, renamed or added, and what was done."""
    data = json.loads(json.dumps(data))
    places = list(_places(data)) if isinstance(data, dict | list) else []
    if not places:
        value = chance.choice(VALUES)
        return f"{short(value)} instead of all", value
    holder, key, name = chance.choice(places)
    kind = chance.choice(("replace", "replace", "replace", "remove", "rename", "add"))
    if kind == "add" or not isinstance(holder, dict):
        kind = "replace" if not isinstance(holder, dict) else kind
    if kind == "remove":
        del holder[key]
        return f"{name} removed", data
    if kind == "rename":
        holder[key[:-1] or "x"] = holder.pop(key)
        return f"{name} renamed", data
    value = chance.choice(VALUES)
    if kind == "add":
        holder[f"{key}_"] = value
        return f"{name}_ = {short(value)} added", data
    holder[key] = value
    return f"{name} = {short(value)}", data


def spoiled_json_text(text: str, chance: random.Random) -> tuple[str, bytes]:
    """A file of JSON that is none, or that exhausts a reader."""
    return chance.choice(
        (
            ("empty", b""),
            ("cut in half", text[: len(text) // 2].encode()),
            ("UTF-16", text.encode("utf-16")),
            ("a byte order mark", b"\xef\xbb\xbf" + text.encode()),
            ("Latin-1", b'{"caf\xe9": 1}'),
            ("100,000 brackets", b"[" * 100_000),
            ("100,000 nested objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
            ("900 nested objects", b'{"a":' * 900 + b"1" + b"}" * 900),
            ("an empty object", b"{}"),
            ("a number of 5,000 digits", b'{"vocab_size": ' + b"9" * 5000 + b"}"),
            ("a list", b"[1, 2]"),
            ("a number", b"5"),
            ("null", b"null"),
            ("NaN", b'{"hidden_size": NaN}'),
            ("the name of a file", b'"/etc/passwd"'),
            ("a field twice", b'{"model_type": "gpt2", ' + text.strip()[1:].encode()),
            ("NULs", bytes(200)),
        )
    )


def misspelt(word: str, chance: random.Random) -> str:
    """A word with one letter wrong."""
    at = chance.randrange(2, max(3, len(word)))
    return word[:at] + chance.choice(("", "x", "_", "-", "é")) + word[at + 1 :]


def _places(data: Any, name: str = "") -> Iterator[tuple[Any, Any, str]]:
    """Every place of a tree that holds a value: its holder, its key, its name."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key, f"{name}.{key}".lstrip(".")
        if isinstance(value, dict | list) and value:
            yield from _places(value, f"{name}.{key}")


def short(value: Any) -> str:
    """A value as it is shown, or its beginning."""
    text = repr(value)
    return text if len(text) < 60 else f"{text[:60]}..."
