"""`jaxformer.encoder`: pure functions of frozen encoders, and the examples that use them."""

import os
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from recordings import Recording
from saved_folders import save_tiny

from jaxformer.distributed.sharding import MeshConfig, make_mesh
from jaxformer.errors import DataError
from jaxformer.functional.hooks import replace_with
from jaxformer.parity.compare import differences
from jaxformer.pretrained.encoder import encoder

ROOT = Path(__file__).parents[2]
KINDS = ("bert", "clip_text_model", "dinov2", "dinov3_vit", "esm", "siglip", "t5")


@pytest.fixture(scope="module")
def examples():
    return runpy.run_path(str(ROOT / "examples" / "frozen_encoders.py"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("bert", "t5", "siglip")
def test_states_are_those_recorded(kind, tmp_path):
    recording = Recording.read(kind)
    recording.write(tmp_path)
    fn, params = encoder(tmp_path)
    given = ("labels", "decoder_", "return_loss")
    inputs = {k: x for k, x in recording.arrays["inputs"].items() if not k.startswith(given)}
    found = jax.jit(partial(fn, hidden_states=True))(params, inputs)
    expected = dict(recording.arrays["outputs"])
    if kind == "t5":
        expected["last_hidden_state"] = expected["encoder_last_hidden_state"]
    names = ("hidden_states", "last_hidden_state", "pooler_output", "text_embeds", "image_embeds")
    arrays = {name: np.asarray(found[name]) for name in names if name in found}
    close = differences(arrays, expected, inputs)
    assert close, list(expected)
    assert max(close.values()) <= 2e-5, close


@pytest.mark.torch
def test_texts_are_read_outside_of_jit(tmp_path):
    save_tiny("bert", tmp_path)
    fn, params = encoder(tmp_path, max_length=8)
    found = fn(params, ["the dog", "the dog runs"])["last_hidden_state"]
    assert found.shape[:2] == (2, 8)
    arrays = fn.tokens(["the dog", "the dog runs"])
    assert arrays["input_ids"][0].tolist()[-1] == 3  # [PAD]
    np.testing.assert_allclose(fn(params, arrays)["last_hidden_state"], found)
    (tmp_path / "tokenizer.json").unlink()
    other, _ = encoder(tmp_path)
    with pytest.raises(DataError, match=r"tokenizer.json"):
        other(params, "the dog")


@pytest.mark.more
def test_parameters_are_sharded_over_a_mesh(tmp_path):
    recording = Recording.read("dinov3_vit")
    recording.write(tmp_path)
    images = {"pixel_values": recording.arrays["inputs"]["pixel_values"][:2]}
    fn, params = encoder(tmp_path)
    expected = fn(params, images)["last_hidden_state"]
    fn, params = encoder(tmp_path, mesh=make_mesh(MeshConfig(data=2, tensor=2), jax.devices()[:4]))
    assert any(not x.sharding.is_fully_replicated for x in params.values())
    np.testing.assert_allclose(fn(params, images)["last_hidden_state"], expected, atol=1e-5)


@pytest.mark.slow
def test_soft_tokens_that_are_hard_give_the_states_of_ids(examples, tmp_path):
    Recording.read("esm").write(tmp_path)
    ids = np.array([[0, 5, 6, 9, 8, 2]])  # 7 is the mask token
    fn, params = encoder(tmp_path)
    size = params["embedding.table"].shape[0]
    hard = 50.0 * jax.nn.one_hot(ids, size)
    given = tmp_path, jax.nn.one_hot(ids, size), lambda states: jnp.sum(states**2)
    gradient = examples["protein_gradient"](*given)
    assert gradient.shape == (1, 6, size)
    assert float(jnp.abs(gradient).max()) > 0
    table = params["embedding.table"]
    soft = 0.88 * jax.nn.softmax(hard) @ table
    found = fn(params, {"input_ids": ids}, hooks={"hook_embed": replace_with(soft)})
    expected = fn(params, {"input_ids": ids})["last_hidden_state"]
    np.testing.assert_allclose(found["last_hidden_state"], expected, atol=1e-5)


@pytest.mark.slow
def test_the_example_runs_without_pytorch():
    code = "import runpy, sys; runpy.run_path('examples/frozen_encoders.py', run_name='__main__')"
    code += "; assert 'torch' not in sys.modules"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    assert "prompt: (1, 5, 64) (1, 24)" in ran.stdout
    assert "image: (1, 3, 28, 28) True" in ran.stdout
