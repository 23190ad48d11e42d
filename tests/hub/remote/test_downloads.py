"""Models from the hub are those of the same files in a folder; only what is needed is fetched."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN
from huggingface_hub import constants
from peft_models import write_random
from saved_folders import TRAVELLERS, assert_same_parameters

import jaxformer
from jaxformer.cli import main as cli
from jaxformer.errors import ConfigError
from jaxformer.hub.remote.download import fetch
from jaxformer.hub.remote.names import HubName, hub_name, read_source
from jaxformer.hub.remote.selection import settings_files, weight_files
from jaxformer.models.lora import LoRA
from jaxformer.pretrained.auto import model_folder
from jaxformer.pretrained.export.push import push
from jaxformer.pretrained.inspection.tokens import open_tokenizer

pytestmark = pytest.mark.more

NEEDED = {"config.json", "model.safetensors", *TRAVELLERS}


def same(left, right):
    assert left.config == right.config
    assert_same_parameters(left, right)


def asked(hub):
    """The names of the files that were asked for."""
    sent = [path for method, path, _ in hub.requests if method == "HEAD" and "/resolve/" in path]
    return sorted(path.rpartition("/")[2] for path in sent)


def test_a_name_is_the_folder_bit_for_bit(hub, folder):
    extra = ("pytorch_model.bin", "tf_model.h5", "flax_model.msgpack", "onnx/model.onnx", "a.py")
    files = hub.repositories["org/name"].branches["main"]
    files |= dict.fromkeys(extra, b"not needed") | {"README.md": b"# A model"}
    files["additional_chat_templates/tools.jinja"] = b"{{ tools }}"
    loaded = jaxformer.load("org/name")
    same(loaded, jaxformer.load(folder))
    assert loaded.folder.name == hub.repositories["org/name"].commit("main")
    assert asked(hub) == sorted({*NEEDED, "tools.jinja"})
    hub.requests.clear()
    same(jaxformer.load("org/name"), loaded)
    assert asked(hub) == []


def test_shards(hub, folder, tmp_path):
    jaxformer.save(jaxformer.load(folder), tmp_path / "shards", max_shard_bytes=20_000)
    hub.add("org/shards", tmp_path / "shards")
    files = hub.repositories["org/shards"].branches["main"]
    assert len(files) > 5
    files["consolidated.safetensors"] = b"the same in another layout"
    same(jaxformer.load("org/shards"), jaxformer.load(folder))
    assert "consolidated.safetensors" not in asked(hub)


def test_old_names_lead_to_the_new_ones(hub, folder):
    hub.redirects["name"] = "org/name"
    same(jaxformer.load("name"), jaxformer.load(folder))


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, folder):
    repository = hub.repositories["org/name"]
    other = dict(repository.branches["main"])
    other["generation_config.json"] = b'{"max_length": 9}'
    repository.branches |= {"v2": other, "refs/pr/1": other}

    def max_length(*arguments, **options):
        found = jaxformer.load(*arguments, **options).folder / "generation_config.json"
        return json.loads(found.read_text())["max_length"]

    commit = repository.commit("v2")
    assert max_length("org/name") == 7
    for name in ("v2", "refs/pr/1", commit):
        assert max_length(f"org/name@{name}") == 9
        assert max_length("org/name", revision=name) == 9
    with pytest.raises(ConfigError, match="revision = 'v1': org/name@v2 names another one"):
        jaxformer.load("org/name@v2", revision="v1")
    with pytest.raises(ConfigError, match="revision = 'v1': must be None for"):
        jaxformer.load(folder, revision="v1")


def test_a_folder_comes_before_a_name(hub, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "name").symlink_to(folder)
    assert jaxformer.load("org/name").folder == Path("org/name")
    assert hub.requests == []


@pytest.mark.parametrize("path", ["./org/name", "/org/name", "org/name/more", Path("org/name")])
def test_a_path_is_no_name(hub, path):
    with pytest.raises(ConfigError, match=r"must be the folder of a run or .* looked from"):
        jaxformer.load(path)
    assert hub.requests == []


def test_what_can_be_a_name():
    for text in ("gpt2", "org/na.me-1_x", "a/b@main", "a/b@refs/pr/12", f"a/b@{'0' * 40}"):
        assert str(hub_name(text)) == text
    paths = (
        "a/b/c",
        "a/b/",
        "../a",
        "~/a",
        "a//b",
        "a/b@",
        "a/b@x y",
        "a/b@../c",
        "-a/b",
        "a--b/c",
    )
    for text in (*paths, "a/" + "b" * 95, "", None, 3):
        assert hub_name(text) is None


def test_the_token_goes_to_the_hub_and_nowhere_else(hub, folder, monkeypatch):
    hub.repositories["org/name"].private = True
    with pytest.raises(ConfigError, match="set HF_TOKEN, or run: hf auth login"):
        jaxformer.load("org/name")
    same(jaxformer.load("org/name", token=TOKEN), jaxformer.load(folder))
    tokens = {path: token for _, path, token in hub.requests[1:]}
    assert all(
        token == (None if "/cdn/" in path else f"Bearer {TOKEN}") for path, token in tokens.items()
    )
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    same(jaxformer.load("org/name"), jaxformer.load(folder))


def test_another_cache(hub, folder, tmp_path):
    cache = tmp_path / "mine"
    assert jaxformer.load("org/name", cache_dir=cache).folder.is_relative_to(cache)
    assert list(Path(constants.HF_HUB_CACHE).iterdir()) == []


def test_the_tokenizer_needs_no_weights(hub, folder):
    expected = open_tokenizer(folder).tokens("the dog runs")
    assert open_tokenizer("org/name").tokens("the dog runs") == expected
    assert "model.safetensors" not in asked(hub)


@pytest.mark.more
def test_commands_take_names(hub, capsys):
    for arguments in (
        ["tokenize", "org/name", "the dog"],
        ["neighbours", "org/name@main", "dog", "--k", "2"],
        ["generate", "org/name", "--prompt", "the dog", "--max-new-tokens", "2"],
    ):
        assert cli.main(arguments) == 0, capsys.readouterr().err
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.torch
def test_more_commands_take_names(hub, folder, tmp_path, capsys):
    (tmp_path / "rows.jsonl").write_text('{"text": "the dog runs"}\n')
    np.savez(tmp_path / "in.npz", input_ids=np.array([[1, 2, 4]]))
    for arguments in (
        ["verify", "org/name"],
        ["forward", "org/name", "--inputs", tmp_path / "in.npz", "--output", tmp_path / "o.npz"],
        ["predict", "org/name", "--task", "embeddings", "--input", tmp_path / "rows.jsonl",
         "--output", tmp_path / "out.jsonl"],
        ["lab", "attention", "org/name", "--text", "the dog runs", "--out", tmp_path / "maps"],
        ["generate", folder, "--prompt", "the dog", "--draft", "org/name", "--max-new-tokens", "2"],
    ):  # fmt: skip
        assert cli.main([str(each) for each in arguments]) == 0, capsys.readouterr().err
    assert "receipt: none for a model in the hub's cache" in capsys.readouterr().out
    cached = jaxformer.load("org/name").folder
    assert {path.name for path in cached.iterdir()} == NEEDED


def test_an_import_says_where_it_is_from(hub, folder, tmp_path, capsys):
    assert cli.main(["import", "org/name", str(tmp_path / "run")]) == 0
    commit = hub.repositories["org/name"].commit("main")
    assert read_source(tmp_path / "run" / "huggingface") == ("org/name", commit)
    same(jaxformer.load(tmp_path / "run"), jaxformer.load(folder))
    assert cli.main(["inspect", str(tmp_path / "run")]) == 0
    assert f"org/name@{commit}"[:30] in capsys.readouterr().out
    assert cli.main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == NEEDED
    for name in NEEDED:
        assert (tmp_path / "out" / name).read_bytes() == (folder / name).read_bytes()


def test_without_network_the_cache_is_used(hub, folder, monkeypatch, caplog):
    before = jaxformer.load("org/name")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    same(jaxformer.load("org/name"), before)
    assert caplog.messages == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for status in (500, 503, 429):
        hub.broken = status
        same(jaxformer.load("org/name"), before)
        assert "the hub cannot be reached; the cached commit" in caplog.messages[-1]
    hub.go_away()
    same(jaxformer.load("org/name"), before)
    same(jaxformer.load(f"org/name@{before.folder.name}"), before)


def test_a_commit_is_asked_for_once(hub):
    name = HubName("org/name", hub.repositories["org/name"].commit("main"))
    first = fetch(name, "folder")
    hub.requests.clear()
    assert fetch(name, "folder") == first == model_folder(str(name), "folder")
    assert hub.requests == []


def test_one_format_of_weights():
    """The index names files that need not have the usual names."""
    index = {"weight_map": {"a": "part-1.bin", "b": "part-2.bin"}}
    flax = ["flax_model.msgpack", "flax_model.msgpack.index.json", "part-1.bin", "part-2.bin"]
    every = ["config.json", "pytorch_model.bin", "vocab.txt", *flax]
    every += ["model.safetensors", "model.safetensors.index.json"]

    def weights(names):
        return weight_files(names, {name: index for name in names if "index" in name}.get)

    assert weights(every) == ["model.safetensors"]
    assert weights(every[:-2] + every[-1:]) == ["model.safetensors.index.json", *flax[2:]]
    assert weights(every[:-2]) == ["flax_model.msgpack"]
    assert weights(["config.json", *flax[1:]]) == flax[1:]
    assert weights(["config.json", "pytorch_model.bin"]) is None
    adapter = ["adapter_config.json", "adapter_model.safetensors", "model.safetensors"]
    assert weights(adapter) == ["adapter_model.safetensors"]
    assert settings_files([*every, "README.md", "more/vocab.txt", "my.tiktoken"]) == [
        "config.json", "vocab.txt", "my.tiktoken"
    ]  # fmt: skip


def test_an_adapter_and_its_base(hub, folder, tmp_path):
    """Both are on the hub: the adapter names its base."""
    lora = LoRA(rank=2, alpha=2.0, targets=("query",))
    write_random(tmp_path / "adapter", jaxformer.load(folder), lora, "org/name")
    local = jaxformer.load(folder, adapter=tmp_path / "adapter")
    page = push(tmp_path / "adapter", "org/adapter", token=TOKEN)
    assert page == f"{hub.url}/org/adapter"
    for loaded in (jaxformer.load("org/adapter"), jaxformer.load(folder, adapter="org/adapter")):
        same(loaded, local)


@pytest.mark.slow
def test_in_a_process_of_its_own(hub, tmp_path):
    """The variables of the environment that huggingface_hub reads when it is imported."""
    names = ("HF_HUB_OFFLINE", "HF_HUB_CACHE", "HF_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "jaxformer", "tokenize", "org/name", "the dog"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "2 tokens" in done.stdout
    cached = tmp_path / "home" / "hub" / "models--org--name" / "snapshots"
    assert [path.name for path in cached.iterdir()] == [hub.repositories["org/name"].commit("main")]
