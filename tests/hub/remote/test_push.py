"""What is pushed is what is loaded again; a folder that is not whole creates nothing."""

import json
import re
from pathlib import Path

import pytest
from hub_server import TOKEN
from saved_folders import TRAVELLERS, assert_same_parameters, copy_of

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.errors import ArgumentError, ConfigError, DataError
from jaxformer.hub.remote.names import HubName
from jaxformer.hub.remote.upload import upload
from jaxformer.pretrained.export.push import push
from jaxformer.pretrained.import_run import import_folder

NEEDED = {"config.json", "model.safetensors", *TRAVELLERS}


@pytest.fixture(autouse=True)
def token(monkeypatch, hub):
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def test_a_push_is_loaded_again(hub, folder, tmp_path, capsys):
    out = copy_of(folder, tmp_path / "out")
    (out / "README.md").write_text("# Mine\n")
    (out / "notes.txt").write_text("not for others")
    (out / "additional_chat_templates").mkdir()
    (out / "additional_chat_templates" / "rag.jinja").write_text("{{ documents }}")
    arguments = ["push", str(out), "me/new", "--private", "--message", "First"]
    assert cli.main(arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr() == (f"{hub.url}/me/new\n", "")
    repository = hub.repositories["me/new"]
    assert repository.private
    files = repository.branches["main"]
    assert files.keys() == {*NEEDED, "README.md", "additional_chat_templates/rag.jinja"}
    assert all(files[name] == (out / name).read_bytes() for name in files)
    assert hub.commits == [("me/new", "main", "First")]
    assert_same_parameters(jaxformer.load("me/new"), jaxformer.load(folder))


def test_a_push_takes_the_place_of_other_weights(hub, folder, tmp_path):
    model = jaxformer.load(folder)
    jaxformer.save(model, tmp_path / "shards", max_shard_bytes=20_000)
    files = hub.repositories["org/name"].branches["main"]
    files["pytorch_model.bin"] = b"of someone else"
    assert push(tmp_path / "shards", "org/name") == f"{hub.url}/org/name"
    assert "model.safetensors" not in files
    assert "model.safetensors.index.json" in files
    assert_same_parameters(jaxformer.load("org/name"), model)
    push(folder, "org/name")
    assert files.keys() == {*NEEDED, "pytorch_model.bin"}
    push(folder, "org/name")  # nothing changes


def test_a_branch(hub, folder):
    for _ in range(2):
        page = push(folder, "org/name", revision="half")
        assert page == f"{hub.url}/org/name/tree/half"
    assert set(hub.repositories["org/name"].branches) == {"main", "half"}
    assert_same_parameters(jaxformer.load("org/name@half"), jaxformer.load(folder))


@pytest.mark.torch
def test_what_is_no_whole_export_creates_nothing(hub, folder, tmp_path):
    import_folder(folder, tmp_path / "run")
    broken = copy_of(folder, tmp_path / "broken")
    weights = (broken / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(weights[:-8])
    other = copy_of(folder, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 9}))
    (copy_of(folder, tmp_path / "bare") / "model.safetensors").unlink()
    for name, kind, message in (
        ("none", ConfigError, "none: must be the folder of a Hugging Face checkpoint; looked"),
        ("run", ConfigError, "write one of a run with: python -m jaxformer export .*run OUT_DIR"),
        ("broken", DataError, "not a complete safetensors file"),
        ("other", DataError, "is missing"),
        ("bare", DataError, "holds neither model.safetensors nor"),
    ):
        with pytest.raises(kind, match=message):
            push(tmp_path / name, "me/new")
    for arguments, message in (
        ({"name": "a/b/c"}, "NAME = 'a/b/c'"),
        ({"name": "a/b@main"}, "NAME = 'a/b@main'"),
        ({"name": "a/b", "revision": "a b"}, "revision = 'a b'"),
        ({"name": "a/b", "message": " "}, "message = ' '"),
    ):
        with pytest.raises(ArgumentError, match=message):
            push(folder, **arguments)
    assert hub.requests == []


def test_what_the_hub_refuses(hub, folder, monkeypatch, capsys):
    def refused(name="me/new"):
        assert cli.main(["push", str(folder), name]) == 2
        message = capsys.readouterr().err
        assert message.startswith(f"error: NAME = {name!r}: ")
        assert len(message.splitlines()) == 1
        assert hub.repositories.keys() == {"org/name"}
        return message

    assert "the token does not allow this; take one that does" in refused("foreign/name")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "the hub refused the token; set HF_TOKEN, or run: hf auth login" in refused()
    monkeypatch.delenv("HF_TOKEN")
    assert "set HF_TOKEN, or run: hf auth login" in refused()
    hub.go_away()
    assert f"no connection to {hub.url}" in refused()


def test_an_upload_that_breaks_off_commits_nothing(hub, folder, monkeypatch):
    before = dict(hub.repositories["org/name"].branches["main"])
    before["model.safetensors"] = b"older"
    hub.repositories["org/name"].branches["main"] = dict(before)

    def breaks(*arguments, **options):
        hub.go_away()
        raise ConnectionResetError(104, "Connection reset by peer")

    monkeypatch.setattr("huggingface_hub.lfs.http_backoff", breaks)
    options = {"private": False, "message": "Second", "token": TOKEN}
    with pytest.raises(ConfigError, match=r"no connection to .* and run the same again"):
        upload(folder, HubName("org/name"), **options)
    assert hub.repositories["org/name"].branches["main"] == before


def test_an_adapter(hub, folder, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises((ConfigError, DataError), match="adapter"):
        push(tmp_path / "adapter", "me/adapter")
    assert hub.requests == []


def test_the_page_on_the_hub_runs(hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[3] / "docs" / "hub.md").read_text()
    excerpts = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(excerpts) == 2
    names = {}
    for excerpt in excerpts:
        exec(excerpt, names)
    assert_same_parameters(jaxformer.load("org/new"), names["model"])
    assert hub.repositories["org/new"].private
