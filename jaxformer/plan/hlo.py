"""The text of a compiled program: its instructions, how often each runs and who asked for it."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "f16": 2, "tf32": 4, "token": 0}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(pred|token|[sufc]\d+\w*|bf16|tf32)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERAND = re.compile(r"%([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_ENTRY = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
# Whoever calls these says more about an array.
_HELPERS = "functional/"


class Array(NamedTuple):
    """The type of one array."""

    dtype: str
    """As the compiler writes it: "bf16"."""
    shape: tuple[int, ...]
    """The sizes of its dimensions, without the padding of its layout."""

    @property
    def bytes(self) -> int:
        """Bytes without padding."""
        bits = re.search(r"\d+", self.dtype)
        width = _BYTES.get(self.dtype) or (int(bits[0]) / 8 if bits else 0)
        return int(math.prod(self.shape) * width)

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Instruction:
    """One instruction."""

    name: str
    """Its name in the program."""
    type: str
    """The type of its result, as written."""
    opcode: str
    """What it does: "fusion", "all-gather"."""
    rest: str
    """Operands, attributes and metadata, as written."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        found = _ARRAY.findall(self.type)
        return tuple(Array(d, tuple(int(n) for n in s.split(",") if n)) for d, s in found)

    @property
    def op_name(self) -> str:
        """The operation in JAX's words: "jit(_updated)/transpose(jvp())/dot_general"."""
        found = _OP_NAME.search(self.rest)
        return found[1] if found else ""

    @property
    def operands(self) -> list[str]:
        """The names of what it reads."""
        return _OPERAND.findall(self.rest.partition(")")[0])

    @property
    def calls(self) -> list[str]:
        """The computations that it runs; of an asynchronous one, its start does."""
        if self.opcode.endswith(("-update", "-done")):
            return []
        branches = [name for group in _BRANCHES.findall(self.rest) for name in group.split(",")]
        names = [name for _, name in _CALLED.findall(self.rest)]
        return names + [name.strip().lstrip("%") for name in branches]


class Module:
    """A compiled program.

    Args:
        text: As XLA writes it with `--xla_dump_hlo_as_text`.
    """

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self._tables: dict[str, dict[int, str]] = defaultdict(dict)
        table, inside = "", None
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                inside = self.computations[found[2]] = []
                self.entry = found[2] if found[1] else getattr(self, "entry", "")
            elif inside is not None and (found := _INSTRUCTION.match(line)):
                inside.append(_instruction(found[1], found[2]))
            elif line in ("FileNames", "FunctionNames", "FileLocations", "StackFrames"):
                table = line
            elif table and inside is None and (found := _ENTRY.match(line)):
                self._tables[table][int(found[1])] = found[2]

    @cached_property
    def runs(self) -> dict[str, int]:
        """How often a step runs each computation; those of a condition's branches count each."""
        total: dict[str, int] = defaultdict(int)
        called = {
            name: [(each, self.trips(i)) for i in instructions for each in i.calls]
            for name, instructions in self.computations.items()
        }

        def visit(name: str, times: int) -> None:
            total[name] += times
            for each, trips in called.get(name, ()):
                visit(each, times * trips)

        visit(self.entry, 1)
        return dict(total)

    def trips(self, instruction: Instruction) -> int:
        """How often an instruction runs what it calls.

        A loop counts from 0 to a constant, a scan in ones, an unrolled loop in larger steps. Where
        the compiler has not written down how often one runs, that is the constant with which its
        condition compares, over the step.

        Args:
            instruction: One of this program.

        Returns:
            The trips of a loop, 1 if they are not known; 1 for any other instruction.
        """
        if instruction.opcode != "while":
            return 1
        if found := _TRIPS.search(instruction.rest):
            return int(found[1])
        called = dict(_CALLED.findall(instruction.rest))
        condition = {each.name: each for each in self.computations.get(called["condition"], ())}
        limits = [_number(each) for each in condition.values() if _is_count(each)]
        for each in condition.values():
            if limits and each.opcode == "compare" and "direction=LT" in each.rest:
                return math.ceil(max(limits) / self._step(condition[each.operands[0]], called))
        return 1

    def _step(self, counter: Instruction, called: Mapping[str, str]) -> int:
        """What a loop adds to its counter at a time; 1 where the compiler writes it otherwise."""
        body = {each.name: each for each in self.computations.get(called["body"], ())}
        index, root = _INDEX.search(counter.rest), [*body.values()][-1]
        if index is None or root.opcode != "tuple":
            return 1
        added = body[root.operands[int(index[1])]]
        terms = [body[name] for name in added.operands] if added.opcode == "add" else []
        return next((_number(each) for each in terms if _is_count(each)), 1)

    def instructions(self) -> Iterator[tuple[Instruction, str]]:
        """Every instruction that a step runs, with the name of its computation."""
        for name in self.runs:
            yield from ((each, name) for each in self.computations.get(name, ()))

    def source(self, instruction: Instruction, package: str = "jaxformer") -> str:
        """The line that asked for an instruction: "jaxformer/nn/attention.py:180".

        Args:
            instruction: One of this program.
            package: The innermost frame in a file of this package is taken, one outside its
                pure functions if there is one.

        Returns:
            The file and line; "" where the compiler kept neither.
        """
        found = _FRAME.search(instruction.rest)
        frame, seen, innermost = int(found[1]) if found else 0, set(), ""
        while frame and frame not in seen:
            seen.add(frame)
            fields = _fields(self._tables["StackFrames"].get(frame, ""))
            place = _fields(self._tables["FileLocations"].get(fields.get("file_location_id"), ""))
            file = self._tables["FileNames"].get(place.get("file_name_id"), "").strip('"')
            _, ours, path = file.rpartition(f"/{package}/")
            line = f"{package}/{path}:{place.get('line')}"
            if ours and not path.startswith(_HELPERS):
                return line
            innermost = innermost or (line if ours else "")
            frame = fields.get("parent_frame_id", 1) - 1  # written one too large; 0: no parent
        return innermost


def _is_count(instruction: Instruction) -> bool:
    is_integer = instruction.type.startswith(("s32[]", "u32[]", "s64[]"))
    return is_integer and instruction.opcode == "constant"


def _number(constant: Instruction) -> int:
    return int(constant.rest.partition(")")[0])


def _instruction(name: str, text: str) -> Instruction:
    end = _end_of_type(text)
    opcode, _, rest = text[end:].strip().partition("(")
    return Instruction(name, text[:end], opcode, rest)


def _end_of_type(text: str) -> int:
    """Where the type of a result ends; that of a tuple is in parentheses."""
    if not text.startswith("("):
        return text.index(" ") if " " in text else len(text)
    depth = 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if not depth:
            return place + 1
    return len(text)


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELD.findall(text)}
