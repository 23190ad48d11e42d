"""What examples/derivatives.py computes, beside the same from the whole Hessian."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytestmark = pytest.mark.more

PATH = Path(__file__).parents[1] / "examples" / "derivatives.py"
spec = importlib.util.spec_from_file_location("derivative_examples", PATH)
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)

HESSIAN = np.diag([5.0, 2.0, 1.0])


def loss(parameters, batch):
    """A quadratic whose Hessian is known, with a gradient of its own for each example."""
    x = parameters["x"]
    return 0.5 * x @ jnp.asarray(HESSIAN, jnp.float32) @ x - jnp.mean(batch["b"], axis=0) @ x


PARAMETERS = {"x": jnp.array([0.1, -0.2, 0.3])}
BATCH = {"b": jnp.array([[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]])}
KEY = jax.random.key(0)


def test_each_is_that_of_a_quadratic():
    rows = HESSIAN @ np.asarray(PARAMETERS["x"]) - np.asarray(BATCH["b"])
    norms = examples.example_gradient_norms(loss, PARAMETERS, BATCH)
    np.testing.assert_allclose(norms, np.linalg.norm(rows, axis=1), rtol=1e-5)
    largest = examples.top_eigenvalue(loss, PARAMETERS, BATCH, KEY, steps=20)
    np.testing.assert_allclose(largest, 5.0, rtol=1e-5)
    # A diagonal matrix is what the estimator is exact for.
    np.testing.assert_allclose(examples.trace(loss, PARAMETERS, BATCH, KEY, samples=2), 8.0)
    test = jax.tree.map(lambda x: x[:1], BATCH)
    found = examples.influences(loss, PARAMETERS, BATCH, test, damping=0.5, steps=9)
    expected = -rows @ np.linalg.solve(HESSIAN + 0.5 * np.eye(3), rows[0]) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.slow
def test_the_strange_example_stands_out(capsys):
    examples.main()
    assert "largest eigenvalue" in capsys.readouterr().out
    run = examples.tiny_run()
    assert int(jnp.argmax(examples.example_gradient_norms(*run))) == 7
