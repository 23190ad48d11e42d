"""Tasks of a user's code."""

from dataclasses import replace

import jax
import numpy as np
from recordings import Recording

from jaxformer.hub.steps import forward
from jaxformer.hub.tasks.classes import Task
from jaxformer.pretrained.auto import load


class FirstStateTask(Task):
    def outputs(self, model, states, inputs, hf_config):
        return {"first": states.hidden[:, 0]}


def test_a_task_of_ones_own_needs_no_key(tmp_path):
    Recording.read("bert").write(tmp_path)
    model = load(tmp_path)
    architecture = replace(model.checkpoint.architecture, task=FirstStateTask())
    checkpoint = replace(model.checkpoint, architecture=architecture)
    for key in (None, jax.random.key(0)):
        found = forward(
            model.model, checkpoint, {"input_ids": np.arange(12).reshape(2, 6)}, key=key
        )
        np.testing.assert_array_equal(found["first"], found["last_hidden_state"][:, 0])
