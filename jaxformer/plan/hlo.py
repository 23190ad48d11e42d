"""Parses the text of a compiled program: instructions, how often each runs, and source lines."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

_BYTES = {"pred": 1, "s4": 0.5, "u4": 0.5, "bf16": 2, "f16": 2, "tf32": 4, "token": 0}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(
    r"^\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<type>\(.*?\)(?= [\w\-]+\()|\S+) ?"
    r"(?P<opcode>[\w\-]*)\(?(?P<rest>.*)$"
)
_ARRAY = re.compile(r"\b(pred|token|[sufc]\d+\w*|bf16|tf32)\[([\d,]*)\]")
_CALLED = re.compile(r"\b(calls|to_apply|body|condition)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"\b(?:branch|called)_computations=\{([^}]*)\}")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_OPERAND = re.compile(r"%([\w.\-]+)")
_INDEX = re.compile(r"\bindex=(\d+)")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_FRAME = re.compile(r"stack_frame_id=(\d+)")
_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
_ROW = re.compile(r"^(\d+) (.*)$")
_FIELD = re.compile(r"(\w+)=(\d+)")
_PACKAGE, _HELPERS = "jaxformer", "functional/"
"""The source of an array is a line of the package; in a helper function, the line of its caller."""


class Array(NamedTuple):
    """An array type."""

    dtype: str
    """The dtype in XLA's notation: "bf16"."""
    shape: tuple[int, ...]
    """The dimensions, without layout padding."""

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
    """An instruction of a compiled program."""

    name: str
    type: str
    """The result type in XLA's notation."""
    opcode: str
    """"fusion", "all-gather", ..."""
    rest: str
    """Operands, attributes and metadata in XLA's notation."""

    @property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of its result."""
        found = _ARRAY.findall(self.type)
        return tuple(Array(d, tuple(int(n) for n in s.split(",") if n)) for d, s in found)

    @property
    def op_name(self) -> str:
        """The operation in JAX: "jit(_updated)/transpose(jvp())/dot_general"."""
        found = _OP_NAME.search(self.rest)
        return found[1].replace("\\", "") if found else ""

    @property
    def operands(self) -> list[str]:
        """The names of its operands."""
        return _OPERAND.findall(self.rest.partition(")")[0])

    @property
    def calls(self) -> list[str]:
        """The computations that it calls; for asynchronous operations, only the start has them."""
        if self.opcode.endswith(("-update", "-done")):
            return []
        branches = [name for group in _BRANCHES.findall(self.rest) for name in group.split(",")]
        names = [name for _, name in _CALLED.findall(self.rest)]
        return names + [name.strip().lstrip("%") for name in branches]

    @property
    def count(self) -> int | None:
        """The value of a scalar integer constant; None for any other instruction."""
        is_integer = self.type.startswith(("s32[]", "u32[]", "s64[]"))
        is_count = is_integer and self.opcode == "constant"
        return int(self.rest.partition(")")[0]) if is_count else None


class Module:
    """A compiled program, from the output of `--xla_dump_hlo_as_text`."""

    def __init__(self, text: str):
        self.computations: dict[str, list[Instruction]] = {}
        self.entry = ""
        self._tables: dict[str, dict[int, str]] = defaultdict(dict)
        table, inside = "", None
        for line in text.splitlines():
            if found := _COMPUTATION.match(line):
                inside = self.computations[found[2]] = []
                self.entry = found[2] if found[1] else self.entry
            elif inside is not None and (found := _INSTRUCTION.match(line)):
                inside.append(Instruction(**found.groupdict()))
            elif line in _TABLES:
                table = line
            elif table and inside is None and (found := _ROW.match(line)):
                self._tables[table][int(found[1])] = found[2]

    @cached_property
    def runs(self) -> dict[str, int]:
        """How often a step runs each computation; all branches of a conditional count."""
        total: dict[str, int] = defaultdict(int)

        def visit(name: str, times: int) -> None:
            total[name] += times
            for instruction in self.computations.get(name, ()):
                for each in instruction.calls:
                    visit(each, times * self.trips(instruction))

        visit(self.entry, 1)
        return dict(total)

    def trips(self, instruction: Instruction) -> int:
        """How often an instruction runs the computations that it calls; 1 if unknown."""
        # If XLA does not write the trip count of a loop, it is the constant in the condition
        # divided by the increment of the counter.
        if instruction.opcode != "while":
            return 1
        if found := _TRIPS.search(instruction.rest):
            return int(found[1])
        called = dict(_CALLED.findall(instruction.rest))
        condition = {each.name: each for each in self.computations.get(called["condition"], ())}
        limits = [each.count for each in condition.values() if each.count is not None]
        for each in condition.values():
            if limits and each.opcode == "compare" and "direction=LT" in each.rest:
                counter = condition[each.operands[0]]
                return math.ceil(max(limits) / self._increment(counter, called["body"]))
        return 1

    def _increment(self, counter: Instruction, name: str) -> int:
        """Returns the increment of a loop counter; 1 if unknown."""
        body = {each.name: each for each in self.computations.get(name, ())}
        index = _INDEX.search(counter.rest)
        root = [*body.values()][-1]
        if index is None or root.opcode != "tuple":
            return 1
        result = body[root.operands[int(index[1])]]
        terms = [body[each].count for each in result.operands] if result.opcode == "add" else []
        return next((count for count in terms if count is not None), 1)

    def instructions(self) -> Iterator[tuple[Instruction, str]]:
        """Yields every instruction that a step runs, with the name of its computation."""
        for name in self.runs:
            yield from ((each, name) for each in self.computations.get(name, ()))

    def source(self, instruction: Instruction) -> str:
        """Returns the source line of an instruction: "jaxformer/nn/attention.py:180"."""
        found = _FRAME.search(instruction.rest)
        frame = int(found[1]) if found else 0
        seen = set()
        innermost = ""
        while frame and frame not in seen:
            seen.add(frame)
            fields = _fields(self._tables["StackFrames"].get(frame, ""))
            place = _fields(self._tables["FileLocations"].get(fields.get("file_location_id"), ""))
            file = self._tables["FileNames"].get(place.get("file_name_id"), "").strip('"')
            _, ours, path = file.rpartition(f"/{_PACKAGE}/")
            line = f"{_PACKAGE}/{path}:{place.get('line')}"
            if ours and not path.startswith(_HELPERS):
                return line
            innermost = innermost or (line if ours else "")
            frame = fields.get("parent_frame_id", 1) - 1  # XLA's index is off by one
        return innermost


def _fields(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in _FIELD.findall(text)}
