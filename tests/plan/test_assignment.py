"""The arrays of a compiled program: their sizes, and the lines that ask for them."""

import pytest
from plan_cases import tiny

from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import RunError
from jaxformer.plan import compiler
from jaxformer.plan.assignment import CompiledBuffer, largest_buffers, read_assignment
from jaxformer.plan.hlo import Array, Module

TEXT = """HloModule step

FileNames
1 "/somewhere/jaxformer/nn/stack.py"
2 "/somewhere/jaxformer/functional/linear.py"
3 "/somewhere/site-packages/optax/update.py"

FunctionNames
1 "scanned"

FileLocations
1 {file_name_id=1 function_name_id=1 line=227 end_line=227 column=1 end_column=2}
2 {file_name_id=2 function_name_id=1 line=143 end_line=143 column=1 end_column=2}
3 {file_name_id=3 function_name_id=1 line=9 end_line=9 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}
3 {file_location_id=2 parent_frame_id=1}
4 {file_location_id=3 parent_frame_id=1}

ENTRY %main (p.1: f32[2,3], p.2: f32[2,3]) -> bf16[8,3] {
  %p.1 = f32[2,3]{1,0:T(8,128)} parameter(0), metadata={op_name="state.params[\\\\'a\\\\']"}
  %fast.1 = f32[100]{0:T(128)S(1)} copy(%p.1), metadata={op_name="x" stack_frame_id=2}
  %big.1 = (bf16[8,3]{1,0}, u32[]{:S(2)}) fusion(), metadata={op_name="dot" stack_frame_id=2}
  %helper.1 = s8[7]{0} fusion(%p.1), metadata={op_name="cast" stack_frame_id=3}
  ROOT %other.1 = pred[]{:T(512)} fusion(%p.1), metadata={op_name="update" stack_frame_id=4}
}
"""
ASSIGNED = """BufferAssignment:
allocation 0: size 512, page 0, thread-local:
 value: <1 helper.1 @0> (size=512,offset=0): s8[7]{0}
allocation 1: size 24, page 0, parameter 0, shape |f32[2,3]| at ShapeIndex {}:
 value: <2 p.1 @0> (size=24,offset=0): f32[2,3]{1,0:T(8,128)}
 value: <9 other.1{0} @0> (size=24,offset=0): f32[2,3]{1,0:T(8,128)}
allocation 2: size 100, page 0, preallocated-temp:
 value: <3 big.1{0} @0> (size=48,offset=0): bf16[8,3]{1,0}
 value: <4 p.2{1} (phi) @1> (size=40,offset=50): f32[2,3]{1,0}
 value: <5 helper.1 @0> (size=7,offset=48): s8[7]{0}
 value: <6 other.1 @0> (size=1,offset=60): pred[]
 value: <7 helper.1{1} @0> (size=48,offset=0): bf16[8,3]{1,0}
allocation 3: size 400, color 1, page 0, preallocated-temp:
 value: <8 fast.1 @0> (size=400,offset=0): f32[100]{0:T(128)S(1)}
"""
LIVE = """HloLiveRange (max 9):
  InstructionSequence:
    0:p.1
    2:big.1
  BufferLiveRange:
    big.1{0}:2-5
    p.2{1}:6-9
    helper.1{}:3-6
    other.1{}:4-4
    helper.1{1}:5-6
    fast.1{}:0-9
"""


@pytest.mark.parametrize("page", [", page 0", ""], ids=["libtpu 0.0.52", "libtpu 0.0.42"])
def test_memory_is_the_most_that_exists_at_a_time(page):
    found = read_assignment(ASSIGNED.replace(", page 0", page), LIVE)
    assert (found.kept, found.temporary) == (24, 100)
    # At 4: big, helper and other; at 6: helper in big's place, p.2 and helper.
    assert sorted((array.name, array.bytes) for array in found.at_peak) == [
        ("helper.1", 7),
        ("helper.1{1}", 48),
        ("p.2{1}", 40),
    ]
    assert found.peak == 24 + 7 + 48 + 40


def test_the_largest_buffers_name_the_line_that_asks_for_them():
    live = LIVE.replace("p.2{1}:6-9", "p.2{1}:7-9")
    assignment = read_assignment(ASSIGNED, live)
    found = largest_buffers(Module(TEXT), assignment)
    assert found == [
        CompiledBuffer(48, "bf16[8,3]", "dot", "jaxformer/nn/stack.py:227"),
        CompiledBuffer(24, "f32[2,3]", "state.params['a']", ""),
        CompiledBuffer(7, "s8[7]", "cast", "jaxformer/functional/linear.py:143"),
        CompiledBuffer(1, "pred[]", "update", ""),
    ]
    assert largest_buffers(Module(TEXT), assignment, number=1) == found[:1]


def test_what_cannot_be_read_is_no_plan_that_fits(tmp_path, monkeypatch):
    texts = {"": TEXT, "-buffer-assignment": "BufferAssignment:\n other\n", "-live-range": LIVE}
    for ending, text in texts.items():
        (tmp_path / f"module.jit__updated.after_optimizations{ending}.txt").write_text(text)
    monkeypatch.setattr(compiler, "versions", lambda: {"libtpu": "9.9"})
    with pytest.raises(RunError, match=r"libtpu 9\.9.*--no-compile"):
        compiler.read_dump(tmp_path, tiny(), parse_chips("v5e:1x1"))


def test_memory_that_is_needed_is_that_of_the_device_alone():
    text = (
        "BufferAssignment:\n"
        "allocation 0: size 9, page 0, thread-local:\n"
        "allocation 1: size 100, page 0, parameter 3, shape |f32[5,5]| at ShapeIndex {}:\n"
        " value: <1 p @0> (size=100,offset=0): f32[5,5]\n"
        "allocation 2: size 1000, page 0, maybe-live-out:\n"
        "allocation 5: size 512, page 0, output shape is |(f32[])|, maybe-live-out:\n"
        "allocation 3: size 10000, page 0, preallocated-temp:\n"
        "allocation 4: size 100000, color 1, page 0, preallocated-temp:\n"
    )
    found = read_assignment(text, "BufferLiveRange:\n")
    assert (found.kept, found.temporary, found.peak) == (1612, 10000, 1612)


def test_bytes_of_an_array():
    assert Array("bf16", (2, 3)).bytes == 12
    assert Array("pred", ()).bytes == 1
    assert Array("s4", (8,)).bytes == 4
    assert Array("f8e4m3fn", (8,)).bytes == 8
    assert str(Array("f32", (2, 3))) == "f32[2,3]"
