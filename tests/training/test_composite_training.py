"""Composites learn: fine-tuned from a folder, whole or by low-rank factors, and handed back."""

import json
from dataclasses import replace

import numpy as np
import pytest
from saved_folders import save_tiny
from tokenizers import Tokenizer, processors

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import ParallelText
from jaxformer.models.lora import LoRA
from jaxformer.optim import AdamW, Constant
from jaxformer.parity.tiny import TINY
from jaxformer.pretrained.auto import load
from jaxformer.training.loop import train

pytestmark = [pytest.mark.torch, pytest.mark.slow]

KIND = "encoder-decoder"
PARTS = {"vocab_size": 8, "num_hidden_layers": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """bert2bert with 8 tokens, whose tokenizer frames each text."""
    folder, tiny = tmp_path_factory.mktemp("composite") / "model", TINY[KIND]
    parts = {name: tiny[name] | PARTS for name in ("encoder", "decoder")}
    save_tiny(KIND, folder, **parts, pad_token_id=3, decoder_start_token_id=5)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 5), ("[SEP]", 6)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "cls", "sep", "unk")}
    (folder / "tokenizer_config.json").write_text(json.dumps(special))
    return folder


@pytest.fixture(scope="module")
def config(folder):
    texts = [f"{a} {b} {c}" for a in WORDS for b in WORDS for c in WORDS]
    source, target = folder.parent / "source.txt", folder.parent / "target.txt"
    source.write_text("\n".join(texts) + "\n")
    target.write_text("\n".join(" ".join(reversed(text.split())) for text in texts) + "\n")
    data = ParallelText(
        source=str(source),
        target=str(target),
        source_length=8,
        target_length=8,
        batch_size=16,
        validation_fraction=0.2,
        special_tokens="tokenizer",
        start="first",
    )
    return Config(
        init_from=str(folder),
        data=data,
        optimizer=AdamW(schedule=Constant(learning_rate=3e-3, warmup_steps=0)),
        train=TrainConfig(steps=3, eval_interval=3, checkpoint_interval=3),
    )


WORDS = ("the", "dog", "runs")


def changed(before, after):
    return {n for n, x in before.parameters.items() if not np.array_equal(x, after.parameters[n])}


def test_both_stacks_learn_and_the_description_stays(config, folder, tmp_path):
    train(config, tmp_path / "run")
    before, after = load(folder), load(tmp_path / "run")
    assert after.checkpoint.hf_config.given == before.checkpoint.hf_config.given
    parts = {name.split(".")[0] for name in changed(before, after)}
    assert parts >= {"encoder", "decoder"}
    assert after.config.with_fields(scan_layers=True) == before.config.with_fields(scan_layers=True)


def test_low_rank_factors_learn_in_both_stacks(config, folder, tmp_path):
    lora = LoRA(rank=2, targets=("query", "value"))
    train(replace(config, train=replace(config.train, lora=lora)), tmp_path / "run")
    names = changed(load(folder), load(tmp_path / "run"))
    assert names
    assert all(name.endswith(("query.kernel", "value.kernel")) for name in names)
    assert {name.split(".")[0] for name in names} == {"encoder", "decoder"}
