"""A decode step with the names of transformers equals the whole forward pass."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from recordings import Recording

from jaxformer.hub import families, steps
from jaxformer.hub.tasks.classes import Task
from jaxformer.nn.cache import CacheShape
from jaxformer.pretrained.auto import load

IDS = np.arange(3, 15).reshape(2, 6)
MASK = np.array([[0, 0, 1, 1, 1, 1], [1, 0, 1, 1, 1, 1]])


@pytest.mark.more
def test_padding_in_the_cache_is_not_read(tmp_path):
    Recording.read("gpt2").write(tmp_path)
    model = load(tmp_path)
    positions = np.maximum(np.cumsum(MASK, axis=1) - 1, 0)
    inputs = {"input_ids": IDS, "attention_mask": MASK, "position_ids": positions}
    whole = model.outputs(inputs)["logits"]
    shape = CacheShape(2, capacity=8, chunk=8, storage="float32")
    cache = steps.empty_cache(model.abstract_model, shape)
    found, step = [], jax.jit(partial(steps.step, model.model, model.checkpoint))
    for part in (slice(0, 3), slice(3, 4), slice(4, 5), slice(5, 6)):
        given = {name: x[:, part] for name, x in inputs.items()}
        given |= {"attention_mask": MASK, "past_key_values": cache}
        outputs = step(given)
        cache = outputs["past_key_values"]
        found.append(outputs["logits"])
    real = MASK > 0
    np.testing.assert_allclose(np.concatenate(found, 1)[real], whole[real], atol=1e-5)


class FirstStateTask(Task):
    """A task of a user's code."""

    def outputs(self, model, states, inputs, hf_config):
        return {"first": states.hidden[:, 0]}


def test_a_task_of_ones_own_needs_no_key(tmp_path):
    Recording.read("bert").write(tmp_path)
    model = load(tmp_path)
    architecture = replace(model.checkpoint.architecture, task=FirstStateTask())
    checkpoint = replace(model.checkpoint, architecture=architecture)
    for key in (None, jax.random.key(0)):
        found = families.forward(model.model, checkpoint, {"input_ids": IDS}, key=key)
        np.testing.assert_array_equal(found["first"], found["last_hidden_state"][:, 0])
