"""--step and --best: every command that opens a run reads the same checkpoint."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_run import tiny_config
from typed_commands import command, printed, refused

import jaxformer
from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.run_dir import open_run_folder
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import to_json
from jaxformer.models.parameters import AbstractModel

pytestmark = pytest.mark.more

ACCURACY = {2: 0.5, 4: 0.75, 6: 0.75, 8: None}
BEST = 4
"""The first of equals."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose metric is accuracy, with other parameters at each step."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    config = tiny_config(metric="accuracy")
    open_run_folder(folder, config)
    config.data.tokenizer.fit([]).save(folder / "tokenizer")
    checkpoints = Checkpointer(folder / "checkpoints", to_json(config), keep=5)
    for step, accuracy in ACCURACY.items():
        params = AbstractModel(config.model.build).init(jax.random.key(step))
        # The loss says something else than the metric.
        measured = accuracy and {"loss": accuracy, "accuracy": accuracy}
        checkpoints.save(step, {"params": params}, measured)
    checkpoints.close()
    return folder


def embedding(step):
    config = tiny_config()
    return np.asarray(
        AbstractModel(config.model.build).init(jax.random.key(step))["embedding.table"]
    )


@pytest.mark.parametrize(
    ("options", "step"), [({}, 8), ({"step": 2}, 2), ({"best": True}, BEST)], ids=str
)
def test_load_takes_the_step(run, options, step):
    found = np.asarray(jaxformer.load(run, **options).parameters["embedding.table"])
    np.testing.assert_array_equal(found, embedding(step))


def test_the_folder_of_a_checkpoint_is_a_choice_too(run, capsys):
    found = np.asarray(jaxformer.load(run / "checkpoints/6").parameters["embedding.table"])
    np.testing.assert_array_equal(found, embedding(6))
    assert "(step 6)" in printed(capsys, "inspect", run / "checkpoints/6")


@pytest.mark.parametrize("options", [["--best"], ["--step", str(BEST)]], ids=str)
@pytest.mark.quick("*'--step', '4'*")
def test_export_inspect_and_generate_take_the_step(run, options, tmp_path, capsys):
    command("export", run, tmp_path / "out", *options)
    tensors = load_file(tmp_path / "out/model.safetensors")
    assert any(np.array_equal(x, embedding(BEST)) for x in tensors.values())
    assert f"(step {BEST})" in printed(capsys, "inspect", run, *options)
    written, there = tmp_path / "texts.jsonl", tmp_path / "there.jsonl"
    (tmp_path / "prompts").write_text("def\n")
    asked = ["--prompts", tmp_path / "prompts", "--max-new-tokens", 8, "--temperature", 0]
    command("generate", run, *asked, "--output", written, *options)
    command("generate", run / f"checkpoints/{BEST}", *asked, "--output", there)
    assert written.read_text() == there.read_text()


def test_an_export_says_which_tokens_begin_and_end_a_text(run, tmp_path):
    out = tmp_path / "out"
    jaxformer.save(jaxformer.load(run), out)
    settings = json.loads((out / "tokenizer_config.json").read_text())
    config = json.loads((out / "config.json").read_text())
    assert settings["bos_token"] == settings["eos_token"]
    recommended = json.loads((out / "generation_config.json").read_text())
    assert recommended == {name: config[name] for name in recommended}
    assert {"bos_token_id", "eos_token_id", "pad_token_id"} == set(recommended)
    jaxformer.save(jaxformer.load(out), tmp_path / "again")
    for file in out.iterdir():
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize(
    ("name", "options"), [("export", ["out"]), ("inspect", []), ("evaluate", []), ("chat", [])]
)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--step", "2", "--best"], "--step 2 and --best cannot be combined"),
        (["--step", "3"], "--step 3"),
    ],
    ids=str,
)
def test_a_choice_that_cannot_be(run, name, options, wrong, message, tmp_path, capsys):
    paths = [tmp_path / path for path in options]
    assert message in refused(capsys, name, run, *paths, *wrong)
    assert not (tmp_path / "out").exists()


def test_a_folder_that_says_another_step(run):
    for options in ({"step": 2}, {"best": True}):
        with pytest.raises(ConfigError, match="is a single checkpoint; name"):
            jaxformer.load(run / "checkpoints/6", **options)
    assert jaxformer.load(run / "checkpoints/6", step=6).parameters


def test_best_of_nothing_measured(tmp_path):
    config = tiny_config(metric="accuracy")
    params = AbstractModel(config.model.build).init(jax.random.key(0))
    write_run(tmp_path, config, 1, params, {"loss": 1.0})
    with pytest.raises(ConfigError, match=r"--best: no checkpoint .* was measured"):
        jaxformer.load(tmp_path, best=True)


def test_a_hugging_face_checkpoint_has_no_steps(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert"}))
    save_file({"x": np.zeros(1)}, tmp_path / "model.safetensors")
    for options, asked in (({"step": 2}, "--step 2"), ({"best": True}, "--best")):
        with pytest.raises(ConfigError, match=f"{asked}: .* has no steps"):
            jaxformer.load(tmp_path, **options)
