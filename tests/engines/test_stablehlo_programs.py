"""StableHLO: programs for any number of rows and tokens, which the runner calls with JAX alone."""

import ast
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_models import random_model, tiny, tiny_encoder, tiny_encoder_decoder

from jaxformer.engines.base import Prompt
from jaxformer.engines.export import export_model
from jaxformer.engines.reference import ReferenceModel
from jaxformer.engines.stablehlo import runner
from jaxformer.engines.stablehlo.format import JAXEngine
from jaxformer.engines.stablehlo.iree import IREEEngine
from jaxformer.engines.stablehlo.programs import capacity, programs_of
from jaxformer.engines.text_models import keeps_cache
from jaxformer.errors import DataError
from jaxformer.functional import T5Bias
from jaxformer.pretrained.outputs import forward


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    out = tmp_path_factory.mktemp("stablehlo") / "out"
    model = random_model(tiny(vocab_size=64, compute_dtype="float32"))
    export_model(model, out, format="stablehlo", source="here")
    return model, out


def test_the_runner_imports_jax_alone():
    tree = ast.parse(Path(runner.__file__).read_text())
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imported for alias in node.names}
    assert names == {"argparse", "json", "Path", "jax", "numpy"}


@pytest.mark.more
def test_rows_of_any_number_and_length(exported):
    model, out = exported
    program = jax.export.deserialize(bytearray((out / "forward.stablehlo").read_bytes()))
    for shape in ((1, 3), (2, 7), (3, 1)):
        ids = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
        found = program.call(dict(model.parameters), ids, np.ones_like(ids))
        right = forward(model, {"input_ids": ids})["logits"]
        np.testing.assert_allclose(found, right, atol=2e-5)


@pytest.mark.more
def test_prompts_of_different_lengths_and_their_next_tokens(exported):
    model, out = exported
    run = runner.Model(out)
    ids = np.array([[5, 9, 2, 7], [8, 3, 0, 0]], np.int32)
    logits, cache = run.call("prefill", ids, np.array([4, 2], np.int32))
    for row, length in zip(range(2), (4, 2), strict=True):
        right = forward(model, {"input_ids": ids[row : row + 1, :length]})["logits"]
        np.testing.assert_allclose(logits[row], right[0, -1], atol=2e-5)
    logits, _ = run.call("decode", np.array([6, 1], np.int32), cache)
    for row, tokens in enumerate(([5, 9, 2, 7, 6], [8, 3, 1])):
        right = forward(model, {"input_ids": np.array([tokens], np.int32)})["logits"]
        np.testing.assert_allclose(logits[row], right[0, -1], atol=2e-5)


@pytest.mark.more
def test_an_encoder_decoder_keeps_what_it_has_read():
    model = random_model(tiny_encoder_decoder(vocab_size=64, num_layers=1, num_decoder_layers=1))
    programs, weights = programs_of(model), dict(model.parameters)
    ids = np.array([[5, 9, 2, 7], [8, 3, 0, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1], [1, 1, 0, 0]], np.int32)
    inputs = {"input_ids": ids, "attention_mask": mask}
    inputs["decoder_input_ids"] = np.array([[1, 4, 6, 2], [1, 9, 0, 0]], np.int32)
    right = forward(model, inputs)["logits"]
    answers, written = np.array([[1, 4, 6], [1, 0, 0]], np.int32), np.array([3, 1], np.int32)
    logits, cache = programs["prefill"].call(weights, ids, mask, answers, written)
    np.testing.assert_allclose(logits, [right[0, 2], right[1, 0]], atol=2e-5)
    logits, _ = programs["decode"].call(weights, np.array([2, 9], np.int32), cache)
    np.testing.assert_allclose(logits, [right[0, 3], right[1, 1]], atol=2e-5)


@pytest.mark.more
@pytest.mark.parametrize(
    ("config", "names"),
    [
        # A bias that needs no number of rows.
        (
            tiny(vocab_size=64, num_layers=1, position=T5Bias(bidirectional=False)),
            {"forward", "prefill", "decode"},
        ),
        (tiny_encoder(attention="reference"), {"forward"}),
    ],
    ids=["decoder", "encoder"],
)
def test_only_models_that_keep_a_cache_have_steps(config, names):
    assert set(programs_of(random_model(config))) == names
    assert keeps_cache(config) == ("decode" in names)


@pytest.mark.more
def test_the_manifest_says_what_programs_read(exported):
    model, out = exported
    manifest = json.loads((out / "manifest.json").read_text())
    assert set(manifest["programs"]) == {"forward", "prefill", "decode"}
    assert manifest["programs"]["forward"]["inputs"] == ["int32[b,t]", "int32[b,t]"]
    assert manifest["programs"]["forward"]["outputs"] == ["float32[b,t,64]"]
    assert manifest["programs"]["prefill"]["inputs"] == ["int32[b,t]", "int32[b]"]
    assert set(manifest["weights"]) == set(model.parameters)
    assert manifest["capacity"] == capacity(model)


@pytest.mark.more
def test_weights_of_two_bytes_are_read_again(tmp_path):
    model = random_model(tiny(vocab_size=64))
    export_model(model, tmp_path / "out", format="stablehlo", source="here", dtype="bfloat16")
    run = runner.Model(tmp_path / "out")
    assert {array.dtype.name for array in run.weights.values()} == {"bfloat16"}
    found = run.forward([1, 2, 3])
    right = forward(model, {"input_ids": np.array([[1, 2, 3]], np.int32)})["logits"][0]
    assert np.abs(found - right).max() < 0.05 * np.abs(right).max()


@pytest.mark.more
def test_a_process_that_knows_no_jaxformer(exported):
    model, out = exported
    found = JAXEngine().load(out, {}).outputs(Prompt((5, 9, 2)))
    right = forward(model, {"input_ids": np.array([[5, 9, 2]], np.int32)})["logits"][0]
    np.testing.assert_allclose(found, right, atol=2e-5)
    (out / "manifest.json").rename(out / "moved.json")
    with pytest.raises(DataError, match=r"run.py failed"):
        JAXEngine().load(out, {}).outputs(Prompt((5, 9, 2)))
    (out / "moved.json").rename(out / "manifest.json")


@pytest.mark.slow
def test_iree_compiles_the_same_programs(exported):
    pytest.importorskip("iree.compiler")
    pytest.importorskip("iree.runtime")
    model, out = exported
    reference, loaded = ReferenceModel(model), IREEEngine().load(out, {})
    prompt = Prompt((5, 9, 2))
    np.testing.assert_allclose(loaded.outputs(prompt), reference.outputs(prompt), atol=2e-5)
    assert loaded.greedy(prompt, 8) == reference.greedy(prompt, 8)
