"""`jaxformer plan`: what it prints and writes, and what it refuses before any work."""

import gc
import json

import jax
import pytest
from saved_folders import save_tiny
from typed_commands import command, printed, status_of

from jaxformer.plan import compiler, search


@pytest.fixture(autouse=True)
def short_search(monkeypatch):
    """A trace takes a second: one mesh is enough to see that one is found."""
    monkeypatch.setattr(search, "MOST_TRACES", 1)


@pytest.mark.slow
@pytest.mark.parametrize("chips", ["v5e:2x4", "h100:8"])
def test_a_plan_says_what_fits_and_how_fast_it_goes(chips, capsys, tmp_path):
    gc.collect()  # the arrays of other tests
    before = sum(x.nbytes for x in jax.live_arrays())
    file = tmp_path / "plan.json"
    options = ("--no-compile", "--json", file, "--data.batch-size", "64", "--mesh.data", "8")
    command("plan", "tiny_decoder", "--chips", chips, *options)
    out, err = capsys.readouterr()
    assert sum(x.nbytes for x in jax.live_arrays()) == before
    for words in ("fits", "largest batch", "best mesh", "bound by", "MFU", "tokens/s", "whole run"):
        assert words in out
    assert "By closed form only" in out
    assert "tracing a step" in err

    written = json.loads(file.read_text())
    assert written["fits"] is True
    assert written["mesh"] == {"data": 8, "fsdp": 1, "tensor": 1, "sequence": 1, "expert": 1}
    assert written["predicted_bytes"] == sum(written["parts"].values())
    assert written["peak_bytes"] < written["usable_bytes"]
    assert written["rows"] == 64 <= written["largest_batch"]
    assert written["binding"] in written["terms"]
    assert written["step_seconds"] > 0 < written["mfu_causal"] < 1
    assert all(figure["source"] and figure["date"] for figure in written["chip"].values())


@pytest.mark.slow
def test_what_does_not_fit_is_explained(capsys):
    options = ("--no-compile", "--data.batch-size", "1048576", "--mesh.data", "4")
    out = printed(capsys, "plan", "tiny_decoder", "--chips", "v5e:2x2", *options)
    assert "does not fit" in out
    _, largest = out.split("the largest arrays:")
    assert ".py:" in largest


@pytest.mark.slow
def test_a_config_whose_own_mesh_is_impossible_is_planned_on_another(capsys):
    options = ("--no-compile", "--model.remat", "RematNames", "--model.remat.offload", "mlp_hidden")
    out = printed(capsys, "plan", "tiny_decoder", "--chips", "v5e:2x4", *options)
    assert "the config's mesh is impossible here, so this is the best one: mesh data" in out
    assert "best mesh: --mesh.data" in out


@pytest.mark.slow
def test_a_model_that_a_checkpoint_has_is_planned(capsys, tmp_path):
    save_tiny("gpt2", tmp_path / "gpt2")
    options = ("--no-compile", "--init-from", tmp_path / "gpt2", "--model.remat", "full")
    out = printed(capsys, "plan", "dpo", "--chips", "v5e:2x2", *options)
    assert "remat full; 16 rows of" in out
    assert "note: the reference's log-probabilities are computed before the first step" in out


@pytest.mark.slow
def test_the_smallest_slice_is_found(capsys):
    options = ("--chips", "v5e", "--find", "--no-compile")
    assert "on v5e:1x1" in printed(capsys, "plan", "tiny_decoder", *options)


@pytest.mark.slow
def test_without_the_compiler_the_plan_says_how_to_install_it(capsys, monkeypatch):
    monkeypatch.setattr(compiler, "is_installed", lambda: False)
    out = printed(capsys, "plan", "tiny_decoder", "--chips", "v5e:1x1")
    assert "pip install --no-deps --target libtpu" in out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", "name an experiment first"),
        ("tiny_decoder", "chips"),
        ("tiny_decoder --chips v5q:2x2", "did you mean"),
        ("tiny_decoder --chips v5q --find", "must be one of v4, v5e"),
        ("tiny_decoder --chips v5e:4x4 --mesh.tensor 5", "16"),
        ("tiny_decoder --chips v5e:4x4 --mesh.data 64", "needs 64 devices"),
        ("tiny_decoder --chips v5e:4x4*2 --mesh.fsdp 32", "--mesh.data 2"),
        ("tiny_decoder --chips v5e:4x4 --mesh.data 4", "uses 4 of the 16 devices"),
        (
            "tiny_decoder --chips=v5e:4x4 --data.batch-size=3 --data.sequence-length=63",
            "must be a multiple of",
        ),
        ("tiny_decoder --chips tpu --find", "must be one of v4, v5e"),
        ("tiny_decoder --chips v5e --find --mesh.fsdp 4", "leave out --mesh"),
        ("sft --chips v5e:2x2", "model = None"),
        ("sft --chips v5e:2x2 --init-from ./nowhere", "init_from = './nowhere'"),
        ("tiny_decoder --chips v5e:2x2 --price-per-chip-hour -1", "must be dollars"),
        ("tiny_decoder --chip v5e:2x2", "did you mean --chips"),
        ("tiny_decodr --chips v5e:2x2", "tiny_decoder"),
    ],
)
def test_bad_input_is_one_sentence(line, words, capsys):
    assert status_of("plan", *line.split()) != 0
    out, err = capsys.readouterr()
    assert words in err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    assert not out
