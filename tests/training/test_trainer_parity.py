"""Fine-tuning gives the losses of Trainer in transformers: the same weights, batches and AdamW.

A run of this library starts from a checkpoint that transformers saved; its Trainer gets the same
rows in the same order.
"""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from corpora import write_rows, write_texts
from hf_checkpoints import SENTENCES, save_checkpoint

from jaxformer.config import DPO, Config, TrainConfig, load_config
from jaxformer.config.shipped import config_spec
from jaxformer.data import DataConfig, TokenizerFile
from jaxformer.data.chat import PaddedChats, PreferenceData
from jaxformer.data.tasks import LabelledText, ParallelText
from jaxformer.optim import AdamW, Cosine, Linear
from jaxformer.pretrained.reader import open_folder
from jaxformer.training.logging.metrics_writer import read_metrics
from jaxformer.training.loop import train

pytestmark = pytest.mark.torch

STEPS, ROWS = 20, 4
RATE, WARMUP, CLIP = 2e-3, 4, 0.5
ADAMW = {"weight_decay": 0.1, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6}
LINEAR = Linear(learning_rate=RATE, warmup_steps=WARMUP)
COSINE = Cosine(learning_rate=RATE, warmup_steps=WARMUP, final_fraction=0.0)


# The data of each family, and their rows as transformers has them -------------------------------


def text_data(folder, tokenizer):
    source = write_texts(folder / "text.jsonl", SENTENCES)
    return DataConfig(source=source, tokenizer=tokenizer, sequence_length=24)


def labelled_data(folder, tokenizer):
    labels = {".": "negative", "?": "neutral", "!": "positive"}
    rows = [{"sentence": text, "label": labels[text[-1]]} for text in SENTENCES]
    return LabelledText(
        train=write_rows(folder / "labels.jsonl", rows), tokenizer=tokenizer, sequence_length=48
    )


def parallel_data(folder, tokenizer):
    for name, texts in (("source", SENTENCES), ("target", reversed(SENTENCES))):
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in texts))
    paths = {side: str(folder / f"{side}.txt") for side in ("source", "target")}
    return ParallelText(**paths, tokenizer=tokenizer, source_length=56, target_length=56)


def causal_rows(batch):
    """[x[0], ..., x[T]] of which those with weight are labels."""
    ids = np.concatenate([batch["inputs"], batch["targets"][:, -1:]], axis=1)
    ignored = np.full_like(ids[:, :1], -100)
    labels = np.where(batch["weights"] > 0, batch["targets"], -100)
    return {"input_ids": ids, "labels": np.concatenate([ignored, labels], axis=1)}


def labelled_rows(batch):
    names = {"inputs": "input_ids", "segments": "attention_mask", "token_types": "token_type_ids"}
    return {theirs: batch[ours] for ours, theirs in names.items()} | {"labels": batch["label"]}


def parallel_rows(batch):
    labels = np.where(batch["weights"] > 0, batch["targets"], -100)
    rows = {"input_ids": batch["inputs"], "attention_mask": batch["segments"]}
    return rows | {"labels": labels}


CASES = {
    "llama": (text_data, causal_rows, LINEAR),
    "gpt2": (text_data, causal_rows, COSINE),
    "bert_classifier": (labelled_data, labelled_rows, LINEAR),
    "t5": (parallel_data, parallel_rows, LINEAR),
}


def experiment(source, data, schedule, **train):
    """A run from a checkpoint, in float32."""
    model = open_folder(source).checkpoint.config
    options = {"clip_norm": CLIP, "log_interval": 1, "eval_interval": STEPS, "sample_tokens": 0}
    return Config(
        model=replace(model, compute_dtype="float32", attention="reference"),
        data=replace(data, batch_size=ROWS, max_validation_batches=1),
        optimizer=AdamW(schedule=schedule, decay_embeddings=True, **ADAMW),
        train=TrainConfig(steps=STEPS, **options, **train),
        init_from=str(source),
    )


def fine_tuned(config, folder):
    """The losses of a run, and the batches it has seen."""
    train(config, folder)
    losses = [row["loss"] for row in read_metrics(folder, "train")]
    rows = config.data.prepare(folder).train
    return losses, [rows.batch(step) for step in range(config.train.steps)]


def settings(folder):
    """The arguments of the trainers of transformers and TRL."""
    return {
        "output_dir": str(folder),
        "per_device_train_batch_size": ROWS,
        "train_sampling_strategy": "sequential",
        "learning_rate": RATE,
        "warmup_steps": WARMUP,
        "max_grad_norm": CLIP,
        "weight_decay": ADAMW["weight_decay"],
        "adam_beta1": ADAMW["beta1"],
        "adam_beta2": ADAMW["beta2"],
        "adam_epsilon": ADAMW["eps"],
        "optim": "adamw_torch",
        "remove_unused_columns": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": True,
    }


def trainer_losses(model, batches, schedule, folder):
    """The losses of Trainer in transformers on these batches, rows as it takes them."""
    import torch
    from transformers import Trainer, TrainingArguments

    found = []

    class Recording(Trainer):
        def compute_loss(self, *arguments, **options):
            result = super().compute_loss(*arguments, **options)
            found.append((result[0] if isinstance(result, tuple) else result).item())
            return result

    rows = [
        {name: torch.tensor(array[row]).long() for name, array in batch.items()}
        for batch in batches
        for row in range(ROWS)
    ]
    arguments = TrainingArguments(
        max_steps=len(batches),
        lr_scheduler_type=type(schedule).__name__.lower(),
        **settings(folder),
    )
    Recording(model=model, args=arguments, train_dataset=rows).train()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_the_losses_are_those_of_transformers(kind, tmp_path):
    import transformers

    make_data, as_rows, schedule = CASES[kind]
    source = save_checkpoint(kind, tmp_path / "source")
    data = make_data(tmp_path, TokenizerFile(str(source)))
    config = experiment(source, data, schedule)
    ours, batches = fine_tuned(config, tmp_path / "run")
    architecture = json.loads((source / "config.json").read_text())["architectures"][0]
    theirs = trainer_losses(
        getattr(transformers, architecture).from_pretrained(source),
        list(map(as_rows, batches)),
        schedule,
        tmp_path / "trainer",
    )
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=0)
    assert np.ptp(ours) > 0.01  # a hundred times the tolerance


# Chats ----------------------------------------------------------------------------------------


def chats():
    """Conversations of one and of two answers, of many lengths."""
    found = []
    for number in range(len(SENTENCES) - 3):
        first, second, third, fourth = SENTENCES[number : number + 4]
        turns = [("user", first), ("assistant", second[: 5 + number % 30])]
        if number % 3:
            turns += [("user", third[: number % 20 + 1]), ("assistant", fourth)]
        found.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    return found


@pytest.mark.slow
def test_answers_are_learned_as_by_trl(tmp_path):
    import transformers
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    source = save_checkpoint("llama", tmp_path / "source", max_position_embeddings=256)
    data = replace(
        load_config(config_spec("sft")).data,
        train=write_rows(tmp_path / "chats.jsonl", chats()),
        tokenizer=TokenizerFile(str(source)),
        packing=PaddedChats(),
        sequence_length=128,
    )
    ours, batches = fine_tuned(experiment(source, data, LINEAR), tmp_path / "run")
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    by_tokens = {
        tuple(tokenizer.apply_chat_template(row["messages"], return_dict=False)[:-1]): row
        for row in chats()
    }
    seen = [
        by_tokens[tuple(tokens[segments > 0].tolist())]
        for batch in batches
        for tokens, segments in zip(batch["inputs"], batch["segments"], strict=True)
    ]
    arguments = SFTConfig(
        assistant_only_loss=True,
        max_length=128,
        logging_steps=1,
        gradient_checkpointing=False,
        bf16=False,
        max_steps=STEPS,
        lr_scheduler_type="linear",
        **settings(tmp_path / "trainer"),
    )
    trainer = SFTTrainer(
        transformers.AutoModelForCausalLM.from_pretrained(source),
        arguments,
        train_dataset=Dataset.from_list(seen),
        processing_class=tokenizer,
    )
    trainer.train()
    theirs = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert len(theirs) == STEPS
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    assert ours[-1] < ours[0] - 0.5


# Preferences --------------------------------------------------------------------------------------

# The template without the line break after a message, which no answer needs.
BARE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{{ message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def preference_rows():
    """Texts, and messages with a prompt of their own or within both conversations."""
    chance = random.Random(0)
    rows = []
    for number in range(90):
        asked, chosen, rejected = chance.sample(SENTENCES, 3)
        question, *answers = (
            [{"role": role, "content": text}]
            for role, text in (("user", asked), ("assistant", chosen), ("assistant", rejected))
        )
        if number % 2:
            answers = [question + answer for answer in answers]
            rows.append(dict(zip(("chosen", "rejected"), answers, strict=True)))
        else:
            rows.append({"prompt": question, "chosen": answers[0], "rejected": answers[1]})
    return rows


def dpo_history(model, tokenizer, rows, loss, folder):
    """The losses and rewards of TRL's DPOTrainer on these rows."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    found = []

    class Recording(DPOTrainer):
        def compute_loss(self, *arguments, **options):
            result = super().compute_loss(*arguments, **options)
            last = {name: values[-1] for name, values in self._metrics["train"].items()}
            found.append({"loss": result.item()} | last)
            return result

    prompts = [row.get("prompt") or row["chosen"][:1] for row in rows]
    columns = {
        "prompt": prompts,
        **{side: [row[side][-1:] for row in rows] for side in ("chosen", "rejected")},
    }
    arguments = DPOConfig(
        beta=loss.beta,
        loss_type=[loss.loss_type, *["sft"] * bool(loss.sft_weight)],
        loss_weights=[1.0, *[loss.sft_weight] * bool(loss.sft_weight)],
        label_smoothing=loss.label_smoothing,
        precompute_ref_log_probs=True,
        gradient_checkpointing=False,
        bf16=False,
        max_steps=STEPS,
        lr_scheduler_type="linear",
        **settings(folder),
    )
    Recording(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
    ).train()
    return found


@pytest.mark.parametrize(
    "loss",
    [
        DPO(beta=0.2),
        DPO(beta=0.5, loss_type="ipo"),
        DPO(beta=0.1, loss_type="robust", label_smoothing=0.1, sft_weight=0.3),
    ],
    ids=lambda loss: loss.loss_type,
)
@pytest.mark.slow
def test_preferences_are_learned_as_by_trl(loss, tmp_path):
    import transformers

    source = save_checkpoint("llama", tmp_path / "source")
    (source / "chat_template.jinja").write_text(BARE)
    rows = preference_rows()
    data = PreferenceData(
        train=write_rows(tmp_path / "preferences.jsonl", rows),
        tokenizer=TokenizerFile(str(source)),
        sequence_length=110,
    )
    config = experiment(source, data, LINEAR, preference=loss)
    _, batches = fine_tuned(config, tmp_path / "run")
    prepared = config.data.prepare(tmp_path / "run").train
    numbers = {row.tobytes(): n for n, row in enumerate(map(side_by_side, everything(prepared)))}
    seen = [numbers[row.tobytes()] for batch in batches for row in side_by_side(batch)]
    where = [int(pair.where.rpartition(":")[2]) - 1 for pair in prepared.examples.pairs]
    history = dpo_history(
        transformers.AutoModelForCausalLM.from_pretrained(source),
        transformers.AutoTokenizer.from_pretrained(source),
        [rows[where[number]] for number in seen],
        loss,
        tmp_path / "trainer",
    )
    measured = read_metrics(tmp_path / "run", "train")
    names = {
        "loss": "loss",
        "accuracy": "rewards/accuracies",
        "margin": "rewards/margins",
        "chosen_reward": "rewards/chosen",
        "rejected_reward": "rewards/rejected",
    }
    apart = np.array([abs(row["rewards/margins"]) > 1e-6 for row in history])
    for name, theirs in names.items():
        ours = np.array([row[name] for row in measured])
        expected = np.array([row[theirs] for row in history])
        # Before the parameters change, a rounding decides which of two answers is better.
        steps = apart if name == "accuracy" else slice(None)
        np.testing.assert_allclose(ours[steps], expected[steps], atol=1e-4, rtol=1e-4)
    assert apart[2:].all()
    assert abs(measured[-1]["margin"]) > 0.01


def side_by_side(batch):
    return np.concatenate([batch["inputs"], batch["targets"]], axis=-1)


def everything(dataset):
    return (dataset.examples.read(n, np.random.default_rng(0)) for n in range(dataset.num_rows))
