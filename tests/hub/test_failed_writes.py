"""Exports and imports that fail: one clear message, and no half-written folder."""

import errno
import resource
import shutil
import sys
from collections import namedtuple

import pytest

from jaxformer.errors import ConfigError
from jaxformer.hub.describe import describe_model
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.model import Pretrained, described_by
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("command", ["import", "export"])
def test_an_output_folder_that_is_not_empty(command, llama, tmp_path, refused, monkeypatch):
    target = tmp_path / "out"
    target.mkdir()
    (target / "precious").write_text("mine")
    monkeypatch.setattr(
        "jaxformer.pretrained.hf_folder.open_folder", None
    )  # refused before it is read
    message = refused(command, llama, target)
    assert f"{target} is not empty: name a new or empty folder" in message
    assert [item.name for item in target.iterdir()] == ["precious"]
    assert "precious is a file: name a new or empty folder" in refused(
        command, llama, target / "precious"
    )


@pytest.mark.parametrize("command", ["import", "export"])
def test_too_small_a_disk(command, llama, tmp_path, refused, monkeypatch):
    usage = namedtuple("usage", "total used free")(10**12, 10**12 - 5000, 5000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = refused(command, llama, tmp_path / "deep" / "out")
    assert "the disk has 0.00 GB free" in message


def test_a_disk_that_is_full_while_weights_are_written(llama, tmp_path, refused):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        message = refused("export", llama, tmp_path / "deep" / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "; nothing was written" in message


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_disk_that_is_full_at_the_end(command, llama, tmp_path, refused, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shutil, "copyfile", fail)
    message = refused(command, llama, tmp_path / "out")
    assert "No space left on device" in message


def test_a_run_is_not_imported(run_folder, tmp_path, refused):
    message = refused("import", run_folder, tmp_path / "again")
    assert "this is a run already" in message


def test_a_run_is_not_verified(run_folder, refused):
    message = refused("verify", run_folder)
    assert f"export it first: python -m jaxformer export {run_folder} OUT_DIR" in message


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_verify_says_what_it_needs(missing, llama, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    message = refused("verify", llama)
    extra = {"torch": "parity", "transformers": "hub"}[missing]
    assert f"needs {missing}: pip install 'jaxformer[{extra}]'" in message
    assert not (llama / "receipt.json").exists()


def test_a_model_that_no_format_can_say(llama, tmp_path):
    model = load(llama)
    config = model.config.with_fields(**{"logits.softcap": 30.0})
    checkpoint = describe_model(config, [FORMATS["bert"], FORMATS["llama"]], {})
    with pytest.raises(
        ConfigError, match=r"nearest: .*'llama' .*logits\.softcap = 30\.0 \(it has None\)"
    ):
        save(Pretrained(config, model.parameters, described_by(checkpoint)), tmp_path / "out")
    assert not list(tmp_path.iterdir())
