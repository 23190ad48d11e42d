"""Variants of a system that cannot be in one configuration, compared with transformers."""

import numpy as np
from saved_folders import save_tiny

from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.parity.compare import beyond_rounding, errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.table import tensors_by_current_name
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients


def check_variant(folder, model_type, changes, kind="", inputs=None):
    """Asserts that a variant of a system is what transformers computes, and is written as it was.

    Args:
        folder: Where its files come to lie.
        model_type: The system.
        changes: Fields of its tiny configuration that differ.
        kind: How the name of the class ends; the most usual one without it.
        inputs: What it is asked, from a description; made up without it.

    Returns:
        Our model.
    """
    ours, theirs = models(save_tiny(model_type, folder, kind, **changes))
    padding = "none" if kind else "left"  # Answers to questions have no loss with the latter.
    asked = inputs(ours.checkpoint) if inputs else example_inputs(ours.checkpoint, padding)
    check_outputs(ours, theirs, asked)
    check_gradients(ours, theirs, asked)
    written = dict(tensors_of(ours.parameters, ours.placements))
    theirs = tensors_by_current_name(folder / "model.safetensors", ours.checkpoint.model_format)
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)
    return ours


def models(folder):
    """Our model of a folder, and transformers'."""
    ours = load(folder)
    return ours, Reference(folder, ours.checkpoint.architecture.name)


def check_outputs(ours, theirs, inputs):
    """Asserts that all outputs agree where they mean something."""
    expected, exact = theirs.outputs(inputs), theirs.exact.outputs(inputs)
    actual = forward(ours, inputs, output_hidden_states=True)
    assert set(expected) <= set(actual), sorted(expected)
    assert not beyond_rounding(errors(actual, expected, exact, inputs))


def check_gradients(ours, theirs, inputs):
    """Asserts that the gradients agree."""
    expected, exact = theirs.gradients(inputs), theirs.exact.gradients(inputs)
    assert not beyond_rounding(gradient_errors(gradients(ours, inputs), expected, exact))


def with_holes(checkpoint):
    """Inputs whose padding lies between the tokens, where positions that are counted skip it."""
    inputs = example_inputs(checkpoint)
    mask = np.ones_like(inputs["input_ids"])
    mask[0, 3:5], mask[1, 6] = 0, 0
    # What is predicted at padding means nothing.
    labels = np.where(np.roll(mask, 1, axis=1) * mask > 0, inputs["labels"], -100)
    return inputs | {"attention_mask": mask, "labels": labels}
