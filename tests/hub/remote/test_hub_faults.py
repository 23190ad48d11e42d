"""What the hub refuses and what goes wrong on the way: one sentence, and nothing half-made."""

import errno
import hashlib
import os
from pathlib import Path

import pytest
from hub_server import TOKEN
from huggingface_hub import constants
from saved_folders import assert_same_parameters

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.extras import MissingExtra
from jaxformer.hub.remote import errors

WEIGHTS = "model.safetensors"


@pytest.fixture
def refused(hub, tmp_path, capfd):
    """Imports a model, which must fail; returns the one line that it printed."""

    def run(name="org/name"):
        assert cli.main(["import", name, str(tmp_path / "run")]) == 2
        assert list(tmp_path.iterdir()) == []
        out, err = capfd.readouterr()
        assert out == ""
        assert err.startswith(f"error: hf_dir = {name!r}: ")
        assert len(err.splitlines()) == 1
        assert not [*Path(constants.HF_HUB_CACHE).rglob("*.incomplete")]
        return err

    return run


def loads(name, folder):
    assert_same_parameters(jaxformer.load(name), jaxformer.load(folder))


def main_of(hub):
    return hub.repositories["org/name"].branches["main"]


def test_no_such_name(hub, refused, monkeypatch):
    for token in (None, TOKEN):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        message = refused("org/nothing")
        assert f"Hugging Face checkpoint (looked from {os.getcwd()}), or the name of a" in message
        assert f"that may be read at {hub.url}; check the spelling" in message


def test_no_such_revision(hub, refused):
    message = refused("org/name@v9")
    assert "org/name has no such revision" in message


def test_a_private_model(hub, refused, monkeypatch):
    hub.repositories["org/name"].private = True
    assert "for a private model set HF_TOKEN, or run: hf auth login" in refused()
    monkeypatch.setenv("HF_TOKEN", "hf_ofsomeoneelse")
    assert "the hub refused the token; set HF_TOKEN, or run: hf auth login" in refused()


def test_a_licence(hub, folder, refused):
    hub.repositories["org/name"].gated = True
    message = refused()
    assert (
        f"its licence must be accepted first, at {hub.url}/org/name; then set HF_TOKEN" in message
    )
    hub.repositories["org/name"].gated = False
    loads("org/name", folder)


@pytest.mark.parametrize("status", [403, 418, 429, 503])
def test_a_hub_that_does_not_answer_as_it_should(hub, refused, status):
    hub.broken = status
    expected = {403: "the token does not allow this", 418: "answered 418: "}
    assert expected.get(status, f"answered {status}; run the same again later") in refused()


def test_no_network(hub, folder, refused):
    hub.go_away()
    message = refused()
    assert f"no connection to {hub.url} (" in message
    assert f"{constants.HF_HUB_CACHE} has no complete copy of org/name; check the" in message


@pytest.mark.torch
def test_offline(hub, folder, refused, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    message = refused()
    assert "must be the folder of a run or of a Hugging Face checkpoint (looked" in message
    assert "the name of a model in the hub's cache, as HF_HUB_OFFLINE is set: " in message
    assert f"{constants.HF_HUB_CACHE} has no complete copy of org/name" in message
    assert hub.requests == []
    # With no more than the tokenizer in the cache.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert cli.main(["tokenize", "org/name", "the dog", "--json"]) == 0
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(jaxformer.errors.ConfigError, match="has no complete copy of org/name"):
        jaxformer.load("org/name")
    assert cli.main(["tokenize", "org/name", "the dog", "--json"]) == 0


def test_a_connection_that_closes_is_taken_up_again(hub, folder):
    hub.cuts = [100, 5000, 10]
    loads("org/name", folder)
    assert hub.cuts == []


def test_a_connection_that_is_closed_instead_of_an_answer(hub, folder):
    """As servers do with one that was kept open for long, whatever is asked next."""
    hub.hangups = ["GET", "HEAD"]
    loads("org/name", folder)
    assert hub.hangups == []


def test_a_hub_that_never_answers(hub, refused):
    hub.hangups = ["GET"] * 50
    assert "no connection to" in refused()
    assert len(hub.requests) == 3


def test_a_connection_that_always_closes(hub, folder, refused):
    main_of(hub)["config.json"] += b" " * 100
    hub.cuts = [0] * 500
    assert "no connection to" in refused()
    hub.cuts = []
    loads("org/name", folder)


def spoil_hash(hub, text):
    hub.repositories["org/name"].hashes[WEIGHTS] = hashlib.sha256(b"another").hexdigest()
    return "has the sha256 "


def spoil_git_hash(hub, text):
    hub.repositories["org/name"].hashes["tokenizer.json"] = "0" * 40
    return "tokenizer.json is damaged: the downloaded file has the git hash "


def too_short(hub, text):
    hub.repositories["org/name"].sizes[WEIGHTS] = len(text) + 8
    return "a download was incomplete and was discarded (Consistency check failed"


def too_long(hub, text):
    hub.repositories["org/name"].sizes[WEIGHTS] = len(text) - 8
    return "a download was incomplete and was discarded (Consistency check failed"


@pytest.mark.parametrize("spoil", [spoil_hash, spoil_git_hash, too_short, too_long])
def test_what_arrives_is_compared_with_what_the_hub_has(hub, folder, refused, spoil):
    expected = spoil(hub, main_of(hub)[WEIGHTS])
    for _ in range(2):  # the first has left nothing that the second would take
        message = refused()
        assert expected in message
        assert "run the same again" in message
    repository = hub.repositories["org/name"]
    repository.hashes.clear()
    repository.sizes.clear()
    loads("org/name", folder)


def test_only_pickles(hub, refused):
    files = main_of(hub)
    files["pytorch_model.bin"] = files.pop(WEIGHTS)
    message = refused()
    assert "org/name holds pytorch_model.bin, a pickle, which can run any code" in message
    assert 'from_pretrained("org/name").save_pretrained(FOLDER)' in message
    assert not [path for _, path, _ in hub.requests if "/resolve/" in path]


def test_what_is_missing(hub, refused):
    files = main_of(hub)
    weights = files.pop(WEIGHTS)
    assert "org/name has no flax_model.msgpack or flax_model.msgpack.index.json" in refused()
    files["model.safetensors.index.json"] = b'{"weight_map": {"a": "one.safetensors"}}'
    assert "names 'one.safetensors', which is not there" in refused()
    for name in ("../a", "/etc/passwd"):
        files["model.safetensors.index.json"] = b'{"weight_map": {"a": "%s"}}' % name.encode()
        assert f"names {name!r}, which is not there" in refused()
    files["model.safetensors.index.json"] = b'{"weight_map": '
    assert "model.safetensors.index.json" in refused()
    files[WEIGHTS] = weights
    del files["config.json"]
    assert "org/name has no config.json, as a model of transformers has: its files" in refused()
    files.clear()
    assert "it has no files" in refused()


def test_a_system_that_is_not_known_costs_no_download(hub, tmp_path, capsys):
    main_of(hub)["config.json"] = b'{"model_type": "lama"}'
    assert cli.main(["import", "org/name", str(tmp_path / "run")]) == 2
    assert "'lama' is not supported yet" in capsys.readouterr().err
    assert not [path for _, path, _ in hub.requests if WEIGHTS in path]


def test_a_full_disk(hub, refused, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    assert "free some space, or set HF_HOME to a folder with more" in refused()


def test_a_cache_that_cannot_be_written(hub, refused, monkeypatch, tmp_path_factory):
    file = tmp_path_factory.mktemp("cache") / "file"
    file.write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(file))
    assert "Not a directory" in refused()


def test_the_library_is_missing(hub, monkeypatch):
    def missing(name, purpose):
        raise MissingExtra(f"{purpose} needs {name}")

    monkeypatch.setattr(errors, "optional_module", missing)
    with pytest.raises(MissingExtra, match="folder = 'org/name' needs huggingface_hub"):
        jaxformer.load("org/name")
