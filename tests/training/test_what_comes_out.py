"""A run that starts from a Hugging Face checkpoint: its export has all that it came with."""

import json
from dataclasses import replace

import pytest
from corpora import write_texts
from hf_checkpoints import SENTENCES, save_checkpoint

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, MaskedLM, Packed
from jaxformer.data.tasks import ParallelText
from jaxformer.models.lora import LoRA
from jaxformer.optim import AdamW, Constant
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.writing import save
from jaxformer.training.loop import train
from jaxformer.training.resolve import fill
from jaxformer.training.transfer.merge import merge

pytestmark = pytest.mark.torch
STEP = TrainConfig(steps=1, sample_tokens=0, log_interval=1)


def still(data, origin, **changes):
    """An experiment whose only step changes nothing."""
    return Config(
        data=data,
        optimizer=AdamW(schedule=Constant(learning_rate=0.0, warmup_steps=0)),
        train=STEP,
        init_from=str(origin),
        **changes,
    )


def text(folder, objective=None):
    options = {} if objective is None else {"objective": objective}
    return DataConfig(
        write_texts(folder / "text.jsonl", SENTENCES),
        packing=Packed(),
        sequence_length=16,
        batch_size=4,
        validation_fraction=0.2,
        max_validation_batches=1,
        **options,
    )


def pairs(folder):
    folder.mkdir(exist_ok=True)
    for name in ("source", "target"):
        (folder / name).write_text("\n".join(SENTENCES) + "\n")
    return ParallelText(
        str(folder / "source"),
        str(folder / "target"),
        source_length=40,
        target_length=40,
        batch_size=4,
        validation_fraction=0.2,
        max_validation_batches=1,
        truncate=True,
    )


def exported(run, folder, **options):
    save(load(run, dtype=None), folder, **options)
    return folder


def assert_same_files(theirs, ours):
    names = sorted(str(path.relative_to(theirs)) for path in theirs.rglob("*") if path.is_file())
    assert names == sorted(str(p.relative_to(ours)) for p in ours.rglob("*") if p.is_file())
    for name in names:
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


@pytest.fixture
def cut(monkeypatch):
    """Makes every checkpoint of several files."""
    from transformers import PreTrainedModel

    whole = PreTrainedModel.save_pretrained
    monkeypatch.setattr(
        PreTrainedModel,
        "save_pretrained",
        lambda self, folder: whole(self, folder, max_shard_size="60KB"),
    )


@pytest.mark.quick("gpt2")
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bert", "t5"])
def test_a_step_at_rate_zero_leaves_every_byte(tmp_path, kind):
    origin = save_checkpoint(kind, tmp_path / "theirs")
    (origin / "additional_chat_templates").mkdir()
    (origin / "additional_chat_templates" / "tools.jinja").write_text("{{ tools }}")
    if kind == "t5":
        data = pairs(tmp_path / "data")
    else:
        data = text(tmp_path / "data", MaskedLM() if kind == "bert" else None)
    train(still(data, origin), tmp_path / "run")
    assert_same_files(origin, exported(tmp_path / "run", tmp_path / "ours"))


@pytest.mark.slow
def test_files_travel_from_run_to_run(tmp_path, cut):
    """In bfloat16, in several files, through a checkpoint of a run and merged factors."""
    import torch

    origin = save_checkpoint("llama", tmp_path / "theirs", dtype=torch.bfloat16)
    (origin / "special_tokens_map.json").write_text('{"pad_token":   "<|end|>"}')
    assert (origin / "model.safetensors.index.json").exists()
    data = text(tmp_path / "data")
    train(still(data, origin), tmp_path / "one")
    train(still(data, tmp_path / "one"), tmp_path / "two")
    second = still(data, tmp_path / "two" / "checkpoints" / "1")
    train(replace(second, train=replace(STEP, lora=LoRA(rank=2))), tmp_path / "three")
    merge(tmp_path / "three", tmp_path / "four")
    for run in ("one", "two", "three", "four"):
        assert_same_files(origin, exported(tmp_path / run, tmp_path / f"{run}-export"))
    as_float = exported(tmp_path / "one", tmp_path / "float", dtype="float32")
    assert json.loads((as_float / "config.json").read_text())["dtype"] == "float32"


@pytest.mark.slow
def test_only_what_is_changed_changes_in_config_json(tmp_path):
    origin = save_checkpoint("gpt2", tmp_path / "theirs")
    theirs = json.loads((origin / "config.json").read_text())
    # As on the hub: another order, another name of a field, one that transformers does not know.
    values = {"torch_dtype": theirs.pop("dtype"), **dict(reversed(theirs.items())), "task": {}}
    (origin / "config.json").write_text(json.dumps(values))
    config = fill(still(text(tmp_path / "data"), origin)).config
    train(config, tmp_path / "same")
    assert_same_files(origin, exported(tmp_path / "same", tmp_path / "same-export"))
    model = config.model.with_fields(**{"self_attention.dropout": 0.25})
    changed = replace(config, model=model)
    train(changed, tmp_path / "run")
    ours = json.loads((exported(tmp_path / "run", tmp_path / "ours") / "config.json").read_text())
    assert ours == values | {"attn_pdrop": 0.25}
