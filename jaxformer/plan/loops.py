"""Which operands of a loop or a condition are what."""

from dataclasses import dataclass

from jaxformer.plan.program import Operation, Program, Value


@dataclass
class LoopParts:
    """The operands of a loop or a condition by their part in it."""

    constants: list[Value | None]
    """What it reads alone."""
    state: list[Value | None]
    """What it writes anew."""
    stacks: list[tuple[Value | None, Value]]
    """Arrays that it reads a slice of each time, and the slices."""
    num_state: int
    """How many of the results are state; the others are stacks."""
    owned: list[tuple[set[Value], set[Value]]]
    """For each body: the inputs that are its own, and the outputs written for the caller."""

    @classmethod
    def of(cls, op: Operation) -> "LoopParts":
        """Those of a `scan`, `while` or `cond`."""
        params = op.equation.params
        if op.name == "scan":
            consts, carry = params["num_consts"], params["num_carry"]
            body = op.bodies[0]
            state = body.inputs[consts : consts + carry]
            slices = [v for v in body.inputs[consts + carry :] if _read_often(body, v)]
            written = {v for v in body.outputs[carry:] if v is not None}
            written -= set(body.outputs[:carry])
            rest = op.operands
            return cls(
                rest[:consts],
                rest[consts : consts + carry],
                list(zip(rest[consts + carry :], body.inputs[consts + carry :], strict=True)),
                carry,
                [({*state, *slices}, written)],
            )
        if op.name == "while":
            consts = params["cond_nconsts"] + params["body_nconsts"]
            state = op.operands[consts:]
            body = op.bodies[-1]
            own = set(body.inputs[params["body_nconsts"] :])
            owned = [(own, set()) if each is body else (set(), set()) for each in op.bodies]
            return cls(op.operands[:consts], state, [], len(op.results), owned)
        # A branch may write its result in place of what it is given alike.
        kinds = {(value.shape, value.dtype) for value in op.results}
        moved = [v is not None and (v.shape, v.dtype) in kinds for v in op.operands[1:]]
        state = [v for v, moves in zip(op.operands[1:], moved, strict=True) if moves]
        constants = [v for v, moves in zip(op.operands[1:], moved, strict=True) if not moves]
        owned = [
            ({v for v, moves in zip(body.inputs, moved, strict=True) if moves}, set())
            for body in op.bodies
        ]
        return cls([*op.operands[:1], *constants], state, [], len(op.results), owned)


def _read_often(program: Program, value: Value) -> bool:
    """Whether several operations read a slice: then it is copied out of its stack."""
    return sum(value in op.operands for op in program.operations) > 1
