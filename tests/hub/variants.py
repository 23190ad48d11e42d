"""Variants of a system that cannot be in one configuration, compared with transformers."""

from functools import partial

import jax
import numpy as np
import pytest
from saved_folders import save_tiny

from jaxformer.generation.api import generate
from jaxformer.hub.weights.weight_file import tensors_of
from jaxformer.parity.compare import beyond_rounding, errors, gradient_errors
from jaxformer.parity.examples import example_inputs
from jaxformer.parity.reference import Reference
from jaxformer.parity.table import tensors_by_current_name
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save

# Systems whose files transformers writes with other names than are written here.
RENAMED = ("esm", "modernbert", "vit_mae")


def each_variant(table):
    """The decorator of a test of each system's variants, which takes a `kind` and its `changes`."""
    params = [
        pytest.param(kind, changes, id=f"{kind} {name}")
        for kind, variants in table.items()
        for name, changes in variants.items()
    ]
    return pytest.mark.parametrize(("kind", "changes"), params)


def check_variant(folder, model_type, changes, kind="", inputs=None, padding=None):
    """Asserts that a variant of a system is what transformers computes, and is written as it was.

    In a class without a loss, the gradients are those of its outputs.

    Args:
        folder: Where its files come to lie.
        model_type: The system.
        changes: Fields of its tiny configuration that differ.
        kind: How the name of the class ends; the most usual one without it.
        inputs: What it is asked, from a description; made up without it.
        padding: Where the padding of what is made up lies.

    Returns:
        Our model.
    """
    ours, theirs = models(save_tiny(model_type, folder, kind, **changes))
    usual = "none" if kind else "left"  # Answers to questions have no loss with the latter.
    asked = (inputs or partial(example_inputs, padding=padding or usual))(ours.checkpoint)
    check_outputs(ours, theirs, asked)
    outputs = theirs.outputs(asked)
    if "loss" in outputs:
        check_gradients(ours, theirs, asked)
    else:
        names = set(forward(ours, asked))
        assert names == outputs.keys() - {"hidden_states"}
        states = {"last_hidden_state"} if "attention_mask" in asked else set()  # those of padding
        check_gradients_of_outputs(ours, asked, sorted(names - states))
    save(ours, folder / "again")
    if model_type in RENAMED:
        check_tensors(ours)
    else:
        check_files(folder / "again", folder)
    return ours


def models(folder):
    """Our model of a folder, and transformers'."""
    ours = load(folder)
    return ours, Reference(folder, ours.checkpoint.architecture.name)


def check_outputs(ours, theirs, inputs, hidden_states=True):
    """Asserts that all outputs, or those without hidden states, agree where they mean something."""
    expected, exact = theirs.outputs(inputs), theirs.exact.outputs(inputs)
    actual = forward(ours, inputs, output_hidden_states=hidden_states)
    if not hidden_states:
        expected = {n: x for n, x in expected.items() if not n.endswith("hidden_states")}
    assert set(expected) <= set(actual), sorted(expected)
    assert not beyond_rounding(errors(actual, expected, exact, inputs))


def check_tensors(ours):
    """Asserts that the tensors of the file would be written as they are."""
    written = dict(tensors_of(ours.parameters, ours.placements))
    file = ours.folder / "model.safetensors"
    for name, tensor in tensors_by_current_name(file, ours.checkpoint.model_format).items():
        np.testing.assert_array_equal(written[name], tensor, err_msg=name)


def check_files(ours, theirs):
    """Asserts that two folders have the same configuration and weights, byte for byte."""
    for name in ("config.json", "model.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


def check_gradients(ours, theirs, inputs):
    """Asserts that the gradients agree."""
    expected, exact = theirs.gradients(inputs), theirs.exact.gradients(inputs)
    assert not beyond_rounding(gradient_errors(gradients(ours, inputs), expected, exact))


def check_greedy_tokens(ours, theirs):
    """Asserts that both continue two prompts with the same tokens."""
    prompts = np.array([[7, 3, 90, 11, 5], [60, 2, 2, 17, 33]])
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None}
    expected = theirs.model.generate(theirs._torch.tensor(prompts), **options).numpy()
    found = generate(ours, {"input_ids": prompts}, **options)["sequences"]
    np.testing.assert_array_equal(found, expected)


def check_gradients_of_outputs(ours, inputs, names):
    """Asserts that the gradients of a random function of outputs agree, in a class without loss."""
    theirs = _WithLoss(ours.folder, ours.checkpoint.architecture.name)
    random, outputs = np.random.default_rng(0), theirs.outputs(inputs)
    weights = {name: random.standard_normal(outputs[name].shape).astype("f4") for name in names}

    @jax.jit
    def loss(parameters):
        found = ours.outputs(inputs, parameters=parameters)
        return sum((found[name] * weight).sum() for name, weight in weights.items())

    learned = [each for each in ours.placements if each.places]
    found = dict(tensors_of(jax.grad(loss)(ours.parameters), learned))
    theirs.weights = weights
    expected, exact = theirs.gradients(inputs), theirs.exact.gradients(inputs)
    assert not beyond_rounding(gradient_errors(found, expected, exact))


class _WithLoss(Reference):
    """The reference, whose loss is the sum of its outputs with these weights."""

    weights = None

    def forward(self, inputs, **options):
        outputs = super().forward(inputs, **options)
        if self.weights:
            outputs.loss = sum(
                (outputs[name] * self._torch.tensor(weight)).sum()
                for name, weight in self.weights.items()
            )
        return outputs


def with_holes(checkpoint):
    """Inputs whose padding lies between the tokens, where positions that are counted skip it."""
    inputs = example_inputs(checkpoint)
    mask = np.ones_like(inputs["input_ids"])
    mask[0, 3:5], mask[1, 6] = 0, 0
    # What is predicted at padding means nothing.
    labels = np.where(np.roll(mask, 1, axis=1) * mask > 0, inputs["labels"], -100)
    return inputs | {"attention_mask": mask, "labels": labels}
