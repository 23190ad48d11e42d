"""Hugging Face checkpoint folders that are damaged, by chance or on purpose: one for every seed."""

import json
import os
import random
import shutil
from pathlib import Path

STRANGE = (
    None, True, 0, -1, 2.5, 1e308, 10**9, 10**12, 10**40, float("nan"), float("inf"), "", "12",
    "a" * 9999, "\ud800", "../../etc/passwd", "/dev/zero", [], [[]], [1, "a", None], {},
    {"a": {"b": []}},
)  # fmt: skip
TEXTS = (
    b"", b"null", b"[]", b"5", b'"x"', b"{", b"{}", b"\0" * 100, b"\xff\xfe{}", b"[" * 100_000,
    b'{"a":' * 900 + b"1" + b"}" * 900, b'{"model_type": ' + b"9" * 5000 + b"}",
)  # fmt: skip


def spoil(source: Path, target: Path, seed: int) -> str:
    """Copies a folder and changes one thing in it; returns what, in words."""
    shutil.copytree(source, target)
    rng = random.Random(seed)
    name = rng.choice(sorted(item.name for item in target.iterdir()))
    file = target / name
    kinds = [_replace, _change_bytes, _change_bytes]
    if name.endswith(".safetensors"):
        kinds += [_change_header] * 4
    else:
        kinds += [_change_json] * 8 + [_change_text]
    change = rng.choice(kinds)
    return f"seed {seed}: {name}: {change(file, rng)}"


def _replace(file: Path, rng: random.Random) -> str:
    """Puts something that is no such file in its place."""
    content = file.read_bytes()
    file.unlink()
    outside = file.parent.with_name(f"{file.parent.name}-outside")
    makers = {
        "nothing": lambda: None,
        "a folder": file.mkdir,
        "a pipe": lambda: os.mkfifo(file),
        "a link to itself": lambda: file.symlink_to(file.name),
        "a link to nothing": lambda: file.symlink_to("gone"),
        "a link to a device": lambda: file.symlink_to("/dev/zero"),
        "a link to the folder": lambda: file.symlink_to("."),
        "a link out of it": lambda: (outside.write_bytes(content), file.symlink_to(outside)),
        "a file of 600 MiB": lambda: (file.write_bytes(content), os.truncate(file, 600 * 2**20)),
    }
    kind = rng.choice(sorted(makers))
    makers[kind]()
    return kind


def _change_bytes(file: Path, rng: random.Random) -> str:
    content = bytearray(file.read_bytes())
    place = rng.randrange(len(content))
    kind = rng.choice(["flip", "cut", "insert", "zero", "add"])
    if kind == "flip":
        content[place] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[place:]
    elif kind == "insert":
        content[place:place] = rng.randbytes(rng.randrange(1, 20))
    elif kind == "zero":
        content[place : place + 50] = bytes(len(content[place : place + 50]))
    else:
        content += rng.randbytes(10)
    file.write_bytes(content)
    return f"{kind} at byte {place}"


def _change_text(file: Path, rng: random.Random) -> str:
    text = rng.choice(TEXTS)
    file.write_bytes(text)
    return f"{text[:20]!r}"


def _change_json(file: Path, rng: random.Random) -> str:
    value = json.loads(file.read_text())
    done = _change(value, rng)
    file.write_text(json.dumps(value))
    return done


def _change_header(file: Path, rng: random.Random) -> str:
    """Changes what a file of tensors says of them, or how long that is."""
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, rest = json.loads(content[8 : 8 + length]), content[8 + length :]
    done = _change(header, rng)
    text = json.dumps(header).encode()
    claimed = rng.choice([len(text)] * 8 + [0, 1, len(text) + 1, 2**31, 2**63])
    file.write_bytes(claimed.to_bytes(8, "little") + text + rest)
    return f"header of {claimed} bytes, {done}"


def _change(value: dict, rng: random.Random) -> str:
    """Changes one value somewhere in a tree, or leaves it out, or gives it another name."""
    owner, path = value, []
    while True:
        keys = list(owner) if isinstance(owner, dict) else list(range(len(owner)))
        key = rng.choice(keys)
        path.append(str(key))
        if not (isinstance(owner[key], dict | list) and owner[key] and rng.random() < 0.8):
            break
        owner = owner[key]
    kind = rng.choice(["set", "set", "set", "drop", "rename"])
    if kind == "set" or not isinstance(owner, dict):
        owner[key] = rng.choice(STRANGE)
        return f"{'.'.join(path)} = {str(owner[key])[:30]!r}"
    held = owner.pop(key)
    if kind == "rename":
        owner[f"{key}x"] = held
    return f"{kind} {'.'.join(path)}"
