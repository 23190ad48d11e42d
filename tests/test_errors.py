"""The errors' messages: one form, and the nearest spelling."""

from pathlib import Path

from jaxformer.errors import did_you_mean, first_line, shortened


def test_nearest_spelling():
    assert did_you_mean("num_layer", ["num_heads", "num_layers"]) == "; did you mean 'num_layers'?"
    assert did_you_mean("rope", ["ALiBi", "RoPE"]) == "; did you mean 'RoPE'?"
    assert did_you_mean("xyz", ["ALiBi"]) == ""
    assert did_you_mean(3, ["3"]) == ""


def test_a_value_is_shown_as_it_was_typed():
    assert shortened(Path("runs") / "x") == "'runs/x'"
    assert shortened("x") == "'x'"
    assert shortened(10**40) == "an integer of 133 bits"
    assert shortened("a" * 300).endswith("... (str)")


def test_a_long_message_keeps_its_beginning_and_its_end():
    assert first_line(ValueError("one\ntwo")) == "one"
    assert first_line(ValueError()) == "ValueError"
    layers = "Error writing gs://bucket/" + "a/" * 300
    line = first_line(ValueError(f"{layers}: permission denied [tensorstore_spec='{{...}}']"))
    assert line.startswith("Error writing gs://bucket/")
    assert line.endswith("a/: permission denied")
    assert len(line) < 400
