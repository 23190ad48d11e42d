"""The errors' messages: one form, and the nearest spelling."""

from jaxformer.errors import did_you_mean


def test_nearest_spelling():
    assert did_you_mean("num_layer", ["num_heads", "num_layers"]) == "; did you mean 'num_layers'?"
    assert did_you_mean("rope", ["ALiBi", "RoPE"]) == "; did you mean 'RoPE'?"
    assert did_you_mean("xyz", ["ALiBi"]) == ""
    assert did_you_mean(3, ["3"]) == ""
