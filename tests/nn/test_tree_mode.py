"""Flax's tree mode: a decoder built, run and differentiated with NNX_GRAPH_MODE=false."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tiny_models import gradients_of, random_parameters, tiny, tokens

pytestmark = pytest.mark.optimized

TESTS = Path(__file__).parents[1]
OPTIONS = {"windows": (2, None), "scan_layers": True, "remat": "full"}
PROGRAM = textwrap.dedent(
    """
    import sys
    import jax, numpy as np
    from flax import nnx
    from tiny_models import gradients_of, random_parameters, structure_of, tiny, tokens
    from jaxformer.models import Decoder

    assert not nnx.set_graph_mode.current_value()
    config = tiny(**{options})
    gradients, logits = gradients_of(config, random_parameters(config), tokens(2, 5))
    np.savez(sys.argv[1], logits=logits, **gradients)

    # The module itself is a pytree, and its parameters know their axes.
    model = jax.jit(lambda key: Decoder(key, config))(jax.random.key(0))
    abstract_model = structure_of(config)
    names = abstract_model.parameters(model).keys()
    assert names == abstract_model.shapes.keys() == abstract_model.axes.keys()
    gradient = jax.eval_shape(jax.grad(lambda model: model(tokens(2, 5)).mean()), model)
    assert jax.tree.structure(gradient) == jax.tree.structure(model)
    assert gradient.embedding.table.get_metadata()["axes"] == ("vocab", "vocab_embed")
    """
)


@pytest.mark.slow
def test_tree_mode_gives_the_same_names_values_and_gradients(tmp_path):
    out = tmp_path / "out.npz"
    environment = os.environ | {
        "NNX_GRAPH_MODE": "false",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)]),
    }
    program = PROGRAM.replace("{options}", repr(OPTIONS))
    command = [sys.executable, "-c", program, str(out)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    config = tiny(**OPTIONS)
    gradients, logits = gradients_of(config, random_parameters(config), tokens(2, 5))
    actual = dict(np.load(out))
    assert actual.keys() == {"logits", *gradients}
    for name, expected in {"logits": logits, **gradients}.items():
        scale = np.abs(expected).max()
        np.testing.assert_allclose(actual[name], expected, rtol=0, atol=1e-6 * scale, err_msg=name)
