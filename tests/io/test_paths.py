"""Paths of this machine, and URLs that are none."""

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typed_commands import refused

import jaxformer
from jaxformer.config import Config, Distillation, validate
from jaxformer.errors import ConfigError
from jaxformer.extras import MissingExtra
from jaxformer.io.paths import any_path, check_paths, folder_path, is_remote, local_path
from jaxformer.models import DecoderConfig
from jaxformer.parity.verify import verify
from jaxformer.pretrained.import_run import import_folder
from jaxformer.training.loop import train

URLS = ("hf://meta/llama", "https://x.org/a.tar", "file:///a/b", "az://b/c", "ftp://x/y")
STORES = ("gs://bucket/a", "s3://b/c")


@pytest.mark.parametrize("url", URLS)
def test_a_url_of_another_scheme_is_named_as_it_was_typed(url):
    for given in (url, Path(url)):
        for check in (any_path, local_path, folder_path):
            with pytest.raises(ConfigError) as error:
                check(given, "run_dir")
            text = url.replace("file:///", "file://")
            assert str(error.value) == (
                f"run_dir = {text}: must be a local path or gs://bucket/... or "
                "s3://bucket/...; copy the files to one of them"
            )


@pytest.mark.parametrize("url", STORES)
def test_what_must_be_local_is_no_url(url):
    for given in (url, Path(url)):
        assert is_remote(given)
        with pytest.raises(ConfigError, match=f"^run_dir = {url}"):
            local_path(given, "run_dir")


@pytest.mark.more
def test_a_store_is_a_path_like_any_other():
    for given in ("s3://bucket/a/b", Path("s3://bucket/a/b"), "s3://bucket/a/b/"):
        path = any_path(given, "run_dir")
        assert str(path) == os.fspath(path) == "s3://bucket/a/b"
        assert any_path(path, "run_dir") == path
        assert is_remote(path)
    with pytest.raises(ConfigError, match=r"^run_dir = s3://"):
        any_path("s3://", "run_dir")


def test_the_library_of_a_store_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingExtra) as error:
        any_path("gs://bucket/a", "run_dir")
    assert str(error.value) == ("run_dir = gs://bucket/a needs gcsfs: pip install 'jaxformer[gcs]'")


@pytest.mark.parametrize(
    "path", ["a", "/a/b", "./gs:x", "C:/a", "a:b", "runs/gs://a", "", "..", "~/a"]
)
def test_a_path_is_a_path(path):
    expected = Path(path).expanduser()
    for check in (local_path, any_path):
        assert check(path, "run_dir") == check(Path(path), "run_dir") == expected
    assert not is_remote(path)


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"]])
def test_what_is_no_path(value):
    with pytest.raises(ConfigError, match=r"run_dir ="):
        any_path(value, "run_dir")


@pytest.mark.more
def test_paths_are_found_wherever_they_are():
    @dataclass(frozen=True)
    class Options:
        output: Path | None
        text: str = "gs://is-a-text"

    check_paths({"a": Options(None), "run_dirs": [Path("c"), Path("s3://d")]})
    with pytest.raises(ConfigError, match=r"a\.cache = s3://d"):
        check_paths({"a": {"cache": Path("s3://d")}})
    with pytest.raises(ConfigError, match=r"a\.output = ftp://b"):
        check_paths({"a": Options(Path("ftp://b"))})
    with pytest.raises(ConfigError, match="runs = ftp://b"):
        check_paths({"runs": [Path("a"), Path("ftp://b")]})


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("inspect ftp://a", "run_dir"),
        ("evaluate ftp://a", "run_dir"),
        ("merge a ftp://b", "out_dir"),
        ("compare a ftp://b", "run_dirs"),
        ("compare a b --out ftp://c.png", "out"),
        ("import a ftp://b", "run_dir"),
        ("import hf://a b", "hf_dir"),
        ("export a ftp://b", "out_dir"),
        ("verify ftp://a", "folder"),
        ("forward a --inputs https://x/in.npz --output out.npz", "inputs"),
        ("forward a --inputs in.npz --output ftp://b/out.npz", "output"),
        ("generate ftp://a --prompt x", "folder"),
        ("generate a --prompts x --output ftp://b", "output"),
        ("generate a --prompt x --compilation-cache ftp://b", "compilation_cache"),
        ("chat a --draft ftp://b", "draft"),
        ("parity --output ftp://b", "output"),
        pytest.param("parity --output s3://b/parity.md", "--output", marks=pytest.mark.more),
        ("lab cost --out s3://b/cost", "out"),
        ("predict a --input b --output c --compilation-cache s3://b", "compilation_cache"),
    ],
)
def test_no_command_takes_a_url_for_a_path(command, name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a").mkdir()
    Path("a", "config.json").write_text("{}")
    message = refused(capsys, *command.split())
    assert message.startswith(f"error: {name} = ")
    assert "must be a local path" in message
    assert [item.name for item in tmp_path.iterdir()] == ["a"]


def test_no_function_takes_a_url_for_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = Config(DecoderConfig(vocab_size=8, num_layers=1, model_dim=8, num_heads=1, mlp_dim=8))
    for call in (
        lambda: train(config, "ftp://a"),
        lambda: validate(replace(config, init_from="ftp://a"), 1),
        lambda: jaxformer.load("ftp://a"),
        lambda: import_folder("hf://a", "b"),
        lambda: import_folder("a", "ftp://b"),
        lambda: verify("ftp://a"),
        lambda: Distillation(teacher="ftp://a"),
    ):
        with pytest.raises(ConfigError, match="must be a local path"):
            call()
    assert not list(tmp_path.iterdir())
