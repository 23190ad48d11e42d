"""Models in object stores: what goes there comes back, by every door."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from saved_folders import assert_same_parameters
from tiny_models import random_parameters
from tiny_run import tiny_config

import jaxformer
from jaxformer.checkpoints.saved_run import write_run
from jaxformer.cli import main as cli
from jaxformer.data import Bytes, TokenizerFile, TrainTokenizer
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import upload_folder
from jaxformer.io.paths import any_path
from jaxformer.io.remote import RemotePath
from jaxformer.io.staging import CACHE
from jaxformer.training.resolve import fill
from jaxformer.training.transfer.origin import open_named

pytestmark = pytest.mark.more

pytest_plugins = "object_store"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of this machine."""
    folder, config = tmp_path_factory.mktemp("runs") / "run", tiny_config()
    write_run(folder, config, 3, random_parameters(config.model))
    Bytes().fit([]).save(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def exported(run):
    """Its export."""
    out = run.with_name("exported")
    command("export", run, out)
    return out


def command(*arguments):
    assert cli.main([str(argument) for argument in arguments]) == 0


def uploaded(folder, url):
    upload_folder(Path(folder), any_path(url, "url"))
    return url


def contents(url):
    home = any_path(url, "url")
    return {name: (home / name).read_bytes() for name in home.files()}


@pytest.mark.slow
def test_an_export_has_the_bytes_of_a_local_one(bucket, run, exported, capsys):
    command("export", uploaded(run, f"{bucket}/run"), f"{bucket}/model")
    assert f"{bucket}/model: " in capsys.readouterr().out
    local = {path.name: path.read_bytes() for path in exported.iterdir()}
    assert contents(f"{bucket}/model") == local
    assert_same_parameters(jaxformer.load(f"{bucket}/model"), jaxformer.load(exported))


@pytest.mark.slow
def test_a_run_is_loaded_with_its_tokenizer(bucket, run):
    url = uploaded(run, f"{bucket}/runs/one")
    for folder in (url, f"{url}/checkpoints/3"):
        model = jaxformer.load(folder)
        assert_same_parameters(model, jaxformer.load(run))
        assert model.tokenizer.encode("a dog").ids == [97, 32, 100, 111, 103]


def test_an_export_without_its_configuration_is_not_there(bucket, exported, monkeypatch):
    put = RemotePath.put

    def dies(self, file):
        if self.name == "config.json":
            raise KeyboardInterrupt
        put(self, file)

    monkeypatch.setattr(RemotePath, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        jaxformer.save(jaxformer.load(exported), f"{bucket}/model")
    names = any_path(f"{bucket}/model", "url").files()
    assert "model.safetensors" in names
    assert "config.json" not in names


@pytest.mark.slow
def test_import_forward_and_generate(bucket, exported, capsys, tmp_path):
    hf, run = uploaded(exported, f"{bucket}/hf"), f"{bucket}/imported"
    command("import", hf, run)
    assert f"--init-from {run}" in capsys.readouterr().out
    tokenizer = json.loads((any_path(run, "url") / "config.json").read_text())["data"]["tokenizer"]
    assert tokenizer["path"] == f"{run}/huggingface"
    np.savez(tmp_path / "in.npz", input_ids=np.arange(6)[None])
    any_path(f"{bucket}/in.npz", "url").put(tmp_path / "in.npz")
    for model, output in ((run, f"{bucket}/out.npz"), (exported, tmp_path / "out.npz")):
        command("forward", model, "--inputs", f"{bucket}/in.npz", "--output", output)
    any_path(f"{bucket}/out.npz", "url").get(tmp_path / "remote.npz")
    with np.load(tmp_path / "out.npz") as here, np.load(tmp_path / "remote.npz") as there:
        np.testing.assert_allclose(there["logits"], here["logits"], atol=1e-6)


@pytest.mark.more
def test_generated_lines_go_to_a_store_and_on_after_an_interruption(bucket, exported, capsys):
    prompts, output = any_path(f"{bucket}/prompts.txt", "url"), any_path(f"{bucket}/o.jsonl", "url")
    prompts.write_text("a dog\nthe dog\n")
    options = ("--prompts", prompts, "--output", output, "--max-new-tokens", "3")
    options = ("generate", exported, *options, "--batch-size", "2")
    command(*options)
    lines = output.read_text().splitlines()
    assert [json.loads(line)["prompt"] for line in lines] == ["a dog", "the dog"]
    assert cli.main([str(option) for option in options]) != 0
    assert f"--output {output} exists" in capsys.readouterr().err
    output.write_text(lines[0] + "\n")
    command(*options, "--resume")
    assert len(output.read_text().splitlines()) == 2


def test_a_run_starts_from_a_store(bucket, run, exported):
    for url in (uploaded(run, f"{bucket}/run"), uploaded(exported, f"{bucket}/hf")):
        origin, here = open_named(url, "init_from"), open_named(str(run), "init_from")
        names = sorted(here.shapes)
        there = origin.read(names)
        for name, array in here.read(names).items():
            np.testing.assert_array_equal(there[name], array)
        config = tiny_config()
        data = replace(config.data, tokenizer=TrainTokenizer())
        config = fill(replace(config, init_from=url, data=data)).config
        expected = f"{url}/tokenizer" if url.endswith("run") else url
        assert config.data.tokenizer == TokenizerFile(expected)
        tokenizer = config.data.tokenizer.fit([])
        assert tokenizer.encode("a").tolist() == Bytes().fit([]).encode("a").tolist()


def test_what_is_not_there_is_one_sentence(bucket, run, exported, capsys):
    for url, words in (
        ("s3://no-such-bucket/model", "no objects below it"),
        (f"{bucket}/none", "no objects below it"),
        ("ftp://host/model", "gs://"),
    ):
        with pytest.raises(ConfigError, match=words) as problem:
            jaxformer.load(url)
        assert url in str(problem.value)
        with pytest.raises(ConfigError, match=words):
            open_named(url, "init_from")
    for out, words in (
        ("s3://no-such-bucket/model", "there is no bucket 'no-such-bucket'"),
        ("ftp://host/model", "must be a local path or gs://"),
        (uploaded(exported, f"{bucket}/used"), "is not empty"),
    ):
        assert cli.main(["export", str(run), out]) != 0
        assert words in capsys.readouterr().err


def test_a_damaged_copy_is_refused(bucket, exported):
    url = uploaded(exported, f"{bucket}/model")
    (any_path(url, "url") / "model.safetensors").write_bytes(b"too short")
    with pytest.raises(DataError, match=r"model.safetensors"):
        jaxformer.load(url)


def test_a_tokenizer_is_read_from_a_file_of_a_store(bucket, exported):
    url = uploaded(exported, f"{bucket}/model")
    for path in (url, f"{url}/tokenizer.json"):
        tokenizer = TokenizerFile(path).fit([])
        assert tokenizer.encode("dog").tolist() == [100, 111, 103]
    with pytest.raises(DataError, match="does not exist"):
        TokenizerFile(f"{bucket}/none").fit([])
