"""Supervised fine-tuning on chats beside TRL: the same losses step by step."""

import numpy as np
import pytest
from corpora import write_rows
from hf_checkpoints import SENTENCES, save_checkpoint

from jaxformer.cli.training.train import train
from jaxformer.data.chat import ChatData, PaddedChats
from jaxformer.data.tokenizers.specs import TokenizerFile
from jaxformer.training.logging.metrics_writer import read_metrics

pytestmark = [pytest.mark.torch, pytest.mark.slow]

STEPS, BATCH, LENGTH = 20, 4, 128


def rows():
    """Conversations of one and of two answers, of many lengths."""
    found = []
    for number in range(len(SENTENCES) - 3):
        first, second, third, fourth = SENTENCES[number : number + 4]
        turns = [("user", first), ("assistant", second[: 5 + number % 30])]
        if number % 3:
            turns += [("user", third[: number % 20 + 1]), ("assistant", fourth)]
        found.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    return found


def in_our_order(checkpoint, tables, folder):
    """The conversations in the order in which a run reads them."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    data = ChatData(
        **tables,
        tokenizer=TokenizerFile(str(checkpoint)),
        packing=PaddedChats(),
        sequence_length=LENGTH,
        batch_size=BATCH,
    ).prepare(folder)
    by_tokens = {
        tuple(tokenizer.apply_chat_template(row["messages"], return_dict=False)[:-1]): row
        for row in rows()
    }
    batches = [data.train.batch(step) for step in range(STEPS)]
    return [
        by_tokens[tuple(tokens[segments > 0].tolist())]
        for batch in batches
        for tokens, segments in zip(batch["inputs"], batch["segments"], strict=True)
    ]


def losses_of_trl(checkpoint, ordered, folder):
    import datasets
    import torch
    import transformers
    import trl

    class InOrder(trl.SFTTrainer):
        def _get_train_sampler(self, *_):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    trainer = InOrder(
        transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32),
        trl.SFTConfig(
            str(folder),
            assistant_only_loss=True,
            learning_rate=1e-3,
            lr_scheduler_type="constant",
            weight_decay=0.0,
            max_grad_norm=1.0,
            per_device_train_batch_size=BATCH,
            max_steps=STEPS,
            max_length=LENGTH,
            logging_steps=1,
            gradient_checkpointing=False,
            bf16=False,
            use_cpu=True,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=datasets.Dataset.from_list(ordered),
        processing_class=transformers.AutoTokenizer.from_pretrained(checkpoint),
    )
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def test_the_losses_are_those_of_trl(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checkpoint = save_checkpoint("llama", tmp_path / "hf", max_position_embeddings=256)
    tables = {
        "train": write_rows(tmp_path / "train.jsonl", rows()[4:]),
        "validation": write_rows(tmp_path / "validation.jsonl", rows()[:4]),
    }
    options = {
        "init-from": checkpoint,
        "data.train": tables["train"],
        "data.validation": tables["validation"],
        "data.packing": "PaddedChats",
        "data.sequence-length": LENGTH,
        "data.batch-size": BATCH,
        "optimizer.schedule": "Constant",
        "optimizer.schedule.learning-rate": 1e-3,
        "optimizer.schedule.warmup-steps": 0,
        "model.compute-dtype": "float32",
        "train.steps": STEPS,
        "train.log-interval": 1,
        "run-dir": tmp_path / "run",
    }
    train(["sft", *(part for name, value in options.items() for part in (f"--{name}", str(value)))])
    ours = [row["loss"] for row in read_metrics(tmp_path / "run", "train")]
    ordered = in_our_order(checkpoint, tables, tmp_path / "data")
    theirs = losses_of_trl(checkpoint, ordered, tmp_path / "trl")
    assert len(ours) == len(theirs) == STEPS
    assert ours[-1] < ours[0] - 0.5
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
