"""import, forward, export, verify as a user types them: what goes in comes out again."""

import json
import re

import jax.numpy as jnp
import numpy as np
import pytest
from recordings import Recording
from safetensors.numpy import load_file
from saved_folders import TRAVELLERS, copy_of, save_tiny
from typed_commands import command, refused

import jaxformer
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.distributed.sharding import parameter_sharding
from jaxformer.errors import ConfigError
from jaxformer.parity import verify as verification
from jaxformer.parity.examples import example_inputs
from jaxformer.pretrained.checkpoint import DTYPES

KINDS = ("bert", "llama")


@pytest.fixture(scope="module", params=KINDS)
def folder(request, tmp_path_factory):
    return save_tiny(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def run_folder(folder):
    run = folder.with_name(f"{folder.name}-run")
    command("import", folder, run)
    return run


def cast(folder, target, dtype):
    """A copy of a folder with its weights in another dtype, saved by transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    name = json.loads((folder / "config.json").read_text())["architectures"][0]
    model = getattr(transformers, name).from_pretrained(folder, dtype=getattr(torch, dtype))
    copy_of(folder, target)
    model.save_pretrained(target)
    for traveller in TRAVELLERS:
        (target / traveller).write_bytes((folder / traveller).read_bytes())
    return target


def tensors_of(folder):
    """name -> (dtype, shape, bytes) of all tensors of a folder."""
    files = sorted(folder.glob("*.safetensors"))
    tensors = {name: x for file in files for name, x in load_file(file).items()}
    return {name: (str(x.dtype), x.shape, x.tobytes()) for name, x in tensors.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_recorded_model_comes_back(kind, tmp_path):
    Recording.read(kind).write(tmp_path / "theirs")
    command("import", tmp_path / "theirs", tmp_path / "run")
    command("export", tmp_path / "run", tmp_path / "ours")
    assert tensors_of(tmp_path / "ours") == tensors_of(tmp_path / "theirs")


@pytest.mark.torch
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.quick("bert-float32", "llama-bfloat16")
def test_there_and_back_changes_no_byte(dtype, folder, tmp_path):
    original = cast(folder, tmp_path / "original", dtype)
    command("import", original, tmp_path / "run")
    command("export", tmp_path / "run", tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(original)
    for name in TRAVELLERS:
        assert (tmp_path / "out" / name).read_bytes() == (original / name).read_bytes(), name
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["dtype"] == dtype
    before = json.loads((original / "config.json").read_text())
    assert {**config, "dtype": 0} == {**before, "dtype": 0}


@pytest.mark.torch
@pytest.mark.quick("llama")
def test_weights_are_cast_on_request(folder, tmp_path):
    command("import", folder, tmp_path / "run", "--dtype", "bfloat16")
    command("export", tmp_path / "run", tmp_path / "out", "--dtype", "float16")
    expected = {
        name: x.astype(jnp.bfloat16).astype(np.float16)
        for name, x in load_file(folder / "model.safetensors").items()
    }
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert {name: x.tobytes() for name, x in written.items()} == {
        name: x.tobytes() for name, x in expected.items()
    }


@pytest.mark.torch
@pytest.mark.quick("bert")
def test_several_files_are_written_and_read(folder, run_folder, tmp_path):
    command("export", run_folder, tmp_path / "out", "--max-shard-gb", "3e-5")
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    for file in files:
        held = load_file(file)
        assert sum(x.nbytes for x in held.values()) <= 30_000 or len(held) == 1
        assert all(index["weight_map"][name] == file.name for name in held)
    expected = tensors_of(folder)
    assert tensors_of(tmp_path / "out") == expected
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in expected.values())
    again = jaxformer.load(tmp_path / "out")
    for name, array in jaxformer.load(folder).parameters.items():
        np.testing.assert_array_equal(array, again.parameters[name])


@pytest.mark.first("llama-folder")
@pytest.mark.parametrize("which", ["folder", "run_folder"])
@pytest.mark.quick("*-folder", "bert-*")
def test_forward_is_what_python_computes(which, folder, request, tmp_path, capsys):
    model = jaxformer.load(folder)
    inputs = example_inputs(model.checkpoint, "right")
    np.savez(tmp_path / "in.npz", **inputs)
    place, output = request.getfixturevalue(which), tmp_path / "new" / "out.npz"
    files, asks = ("--inputs", tmp_path / "in.npz", "--output", output), which == "run_folder"
    command("forward", place, *files, *["--hidden-states"] * asks)
    assert f"written to {output}" in capsys.readouterr().out
    expected = jaxformer.forward(model, inputs, output_hidden_states=asks)
    with np.load(output) as found:
        assert set(found) == set(expected)
        for name in found:
            np.testing.assert_array_equal(found[name], expected[name])
    assert [item.name for item in output.parent.iterdir()] == ["out.npz"]


@pytest.mark.torch
@pytest.mark.quick("llama")
def test_what_is_exported_is_verified(run_folder, tmp_path, capsys):
    command("export", run_folder, tmp_path / "out")
    command("verify", tmp_path / "out")
    assert "equal in transformers" in capsys.readouterr().out
    receipt = json.loads((tmp_path / "out" / "receipt.json").read_text())
    assert receipt["agrees"]
    assert receipt["worst_relative_difference"] <= 2e-5
    assert receipt["dtype"] == "float32"
    assert set(receipt["cases"]) == {"none", "right", "left"}
    for case in receipt["cases"].values():
        assert case["likeliest_agree"] == 1.0
        assert not case["beyond_rounding"]
        for pair in case["from_float64"].values():
            assert max(pair.values()) <= case["limit_of_rounding"] <= 2e-5
        assert len(case["layers"]["hidden_states"]) == 4
    assert {"jaxformer", "torch", "transformers", "jax"} <= set(receipt["versions"])
    assert len(receipt["content_hash"]) == 64


@pytest.mark.torch
@pytest.mark.quick("llama")
def test_a_model_that_computes_something_else_is_found_out(folder, tmp_path, capsys, monkeypatch):
    spoiled = copy_of(folder, tmp_path / "spoiled")
    right = verification.forward

    def wrong(*arguments, **options):
        return {name: x * 1.001 for name, x in right(*arguments, **options).items()}

    monkeypatch.setattr(verification, "forward", wrong)
    said = refused(capsys, "verify", spoiled)
    assert re.search(
        r"computes different outputs: \w+ with padding \w+ is off by 1\.0e-03 from", said
    )
    assert not json.loads((spoiled / "receipt.json").read_text())["agrees"]


@pytest.fixture(scope="module", params=KINDS)
def divisible(request, tmp_path_factory):
    """A folder whose tables eight devices can share."""
    sizes = {"vocab_size": 136, "num_attention_heads": 4}
    return save_tiny(request.param, tmp_path_factory.mktemp("cut") / request.param, "", **sizes)


@pytest.mark.torch
@pytest.mark.parametrize("sizes", [(2, 4, 1), (1, 4, 2), (1, 1, 2)])
@pytest.mark.quick("llama-*")
def test_parameters_go_straight_into_their_shardings_and_out_again(sizes, divisible, tmp_path):
    mesh = make_mesh(MeshConfig(*sizes))
    whole, cut = jaxformer.load(divisible), jaxformer.load(divisible, mesh=mesh)
    for name, array in cut.parameters.items():
        axes = cut.abstract_model.axes[name]
        assert array.sharding == parameter_sharding(mesh, name, axes, array.shape), name
        np.testing.assert_array_equal(array, whole.parameters[name])
    assert any(not x.sharding.is_fully_replicated for x in cut.parameters.values())
    jaxformer.save(cut, tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(divisible)


@pytest.mark.torch
def test_a_mesh_that_does_not_divide_the_model(folder):
    with pytest.raises(ConfigError, match=r"cannot be sharded as .* over a mesh of .* = 48 is not"):
        jaxformer.load(folder, mesh=make_mesh(MeshConfig(1, 5, 1)))


@pytest.mark.torch
def test_a_mesh_that_does_not_divide_the_vocabulary(folder, tmp_path):
    model = jaxformer.load(folder, mesh=make_mesh(MeshConfig(1, 2, 1)))
    jaxformer.save(model, tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(folder)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("kind", "changes"), [("xlm-roberta", {}), ("mistral", {"sliding_window": None})]
)
@pytest.mark.quick("mistral-changes1")
def test_a_system_keeps_its_name_where_another_could_say_the_same(kind, changes, tmp_path):
    folder = save_tiny(kind, tmp_path / "folder", "", **changes)
    command("import", folder, tmp_path / "run")
    command("export", tmp_path / "run", tmp_path / "out")
    assert tensors_of(tmp_path / "out") == tensors_of(folder)
    before, after = (
        json.loads((x / "config.json").read_text()) for x in (folder, tmp_path / "out")
    )
    assert after == before
