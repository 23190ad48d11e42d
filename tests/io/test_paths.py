"""Paths of this machine, and URLs that are none."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.config import Config, Distillation, validate
from jaxformer.errors import ConfigError
from jaxformer.io.paths import check_local_paths, local_path
from jaxformer.models import DecoderConfig
from jaxformer.parity.verify import verify
from jaxformer.pretrained.import_run import import_folder
from jaxformer.training.loop import train

URLS = ("gs://bucket/a", "s3://b/c", "hf://meta/llama", "https://x.org/a.tar", "file:///a/b")


@pytest.mark.parametrize("url", URLS)
def test_a_url_is_named_as_it_was_typed(url):
    for given in (url, Path(url)):
        with pytest.raises(ConfigError) as error:
            local_path(given, "run_dir")
        text = url.replace("file:///", "file://")
        assert str(error.value).startswith(f"run_dir = {text}: must be a path on this machine")


@pytest.mark.parametrize(
    "path", ["a", "/a/b", "./gs:x", "C:/a", "a:b", "runs/gs://a", "", "..", "~/a"]
)
def test_a_path_is_a_path(path):
    expected = Path(path).expanduser()
    assert local_path(path, "run_dir") == local_path(Path(path), "run_dir") == expected


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"]])
def test_what_is_no_path(value):
    with pytest.raises(ConfigError, match=r"run_dir = .*: must be a path"):
        local_path(value, "run_dir")


def test_paths_are_found_wherever_they_are():
    @dataclass(frozen=True)
    class Options:
        output: Path | None
        text: str = "gs://is-a-text"

    check_local_paths({"a": Options(None), "b": [Path("c")]})
    with pytest.raises(ConfigError, match=r"a\.output = gs://b"):
        check_local_paths({"a": Options(Path("gs://b"))})
    with pytest.raises(ConfigError, match="runs = gs://b"):
        check_local_paths({"runs": [Path("a"), Path("gs://b")]})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("inspect gs://a", "run_dir"),
        ("evaluate gs://a", "run_dir"),
        ("merge a gs://b", "out_dir"),
        ("compare a gs://b", "run_dirs"),
        ("compare a b --out gs://c.png", "out"),
        ("import a gs://b", "run_dir"),
        ("import hf://a b", "hf_dir"),
        ("export a gs://b", "out_dir"),
        ("verify gs://a", "folder"),
        ("forward a --inputs https://x/in.npz --output out.npz", "inputs"),
        ("forward a --inputs in.npz --output gs://b/out.npz", "output"),
        ("generate gs://a --prompt x", "folder"),
        ("generate a --prompts x --output gs://b", "output"),
        ("generate a --prompt x --compilation-cache gs://b", "compilation_cache"),
        ("chat a --draft gs://b", "draft"),
        ("parity --output gs://b", "output"),
    ],
)
def test_no_command_takes_a_url_for_a_path(command, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a", "config.json").write_text("{}")
    assert cli.main(command.split()) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {name} = ")
    assert "must be a path on this machine" in message
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_no_function_takes_a_url_for_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config(DecoderConfig(vocab_size=8, num_layers=1, model_dim=8, num_heads=1, mlp_dim=8))
    for call in (
        lambda: train(config, "gs://a"),
        lambda: validate(replace(config, init_from="gs://a"), 1),
        lambda: jaxformer.load("gs://a"),
        lambda: import_folder("hf://a", "b"),
        lambda: import_folder("a", "gs://b"),
        lambda: verify("gs://a"),
        lambda: Distillation(teacher="gs://a"),
    ):
        with pytest.raises(ConfigError, match="must be a path on this machine"):
            call()
    assert not list(tmp_path.iterdir())
