# %% [markdown]
# # Fine-tuning
#
# An encoder is pre-trained on the documentation of Python's standard library, and then learns what
# a line of it documents: a class, a function or a method. From its weights, from scratch, and with
# low-rank adapters on frozen weights. [Fine-tuning](../finetuning.md) does the same on the command
# line, for checkpoints of any size.

# %%
import contextlib
import csv
import io
import json
import runpy
import tempfile
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import jaxformer
from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, Files, MaskedLM, TrainTokenizer
from jaxformer.data.tasks import LabelledText
from jaxformer.functional import Learned
from jaxformer.models import EncoderConfig, MaskedLanguageModel
from jaxformer.models.lora import LoRA
from jaxformer.optim import AdamW, Cosine, Muon

EXAMPLES = Path(__file__).parent if "__file__" in globals() else Path("examples")
folder = Path(tempfile.mkdtemp())
with contextlib.redirect_stdout(io.StringIO()):
    runpy.run_path(str(EXAMPLES / "docstring_data.py"))["main"](folder)
with (folder / "train.csv").open() as file:
    rows = list(csv.DictReader(file))
for row in rows[:3]:
    print(row)

# %% [markdown]
# ## Pre-training
#
# Masked tokens of 700 kB of text, for about a minute. `jaxformer.train` takes a config, and
# returns the metrics and the model.


# %%
def run(config, name):
    """Trains quietly; returns the result and the validation metrics of metrics.jsonl."""
    with contextlib.redirect_stdout(io.StringIO()):
        result = jaxformer.train(config, folder / name)
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    return result, [line for line in lines if line["split"] == "validation"]


pretraining = Config(
    model=EncoderConfig(
        vocab_size=1024,
        num_layers=2,
        model_dim=64,
        num_heads=4,
        mlp_dim=128,
        position=Learned(max_length=64),
        heads=(MaskedLanguageModel(),),
        scan_layers=False,
    ),
    data=DataConfig(
        source=Files(path=str(folder / "text")),
        tokenizer=TrainTokenizer(kind="bpe", vocab_size=1024),
        objective=MaskedLM(),
        sequence_length=64,
        batch_size=16,
    ),
    optimizer=Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=20)),
    train=TrainConfig(steps=700, eval_interval=175, checkpoint_interval=700),
)
base, history = run(pretraining, "base")
for line in history:
    print(f"step {line['step']}: loss of a masked token {line['loss']:.2f}")
assert history[-1]["loss"] < history[0]["loss"]

# %% [markdown]
# ## Fine-tuning, whole and with adapters
#
# `init_from` takes the model, its tokenizer and its longest row from the run, and the data give it
# a head. With `lora` a kernel $W$ of $d \times k$ stays as it is, and $A$ ($d \times r$) and $B$
# ($r \times k$) learn:
#
# $$y = x W + \frac{\alpha}{r} (x A) B$$

# %%
tuning = Config(
    init_from=str(folder / "base"),
    data=LabelledText(
        train=str(folder / "train.csv"),
        validation=str(folder / "dev.csv"),
        text=("text",),
        sequence_length=32,
        truncate=True,
        batch_size=32,
    ),
    optimizer=AdamW(schedule=Cosine(learning_rate=3e-3, warmup_steps=10), weight_decay=0.01),
    train=TrainConfig(steps=200, eval_interval=40, checkpoint_interval=200),
)
lora = LoRA(rank=16, alpha=32.0, targets=("all-linear",), trained=("heads.*", "pooler.*"))
with_adapters = replace(
    tuning,
    train=replace(tuning.train, lora=lora, steps=400, eval_interval=80, checkpoint_interval=400),
    optimizer=replace(tuning.optimizer, schedule=Cosine(learning_rate=5e-3, warmup_steps=10)),
)
results = {"all weights": run(tuning, "whole"), "LoRA, rank 16": run(with_adapters, "lora")}

# %%
labels = [row["label"] for row in csv.DictReader((folder / "dev.csv").open())]
majority = max(map(labels.count, set(labels))) / len(labels)
figure, axes = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for (name, (_, lines)), marker in zip(results.items(), "os", strict=True):
    axes.plot([x["step"] for x in lines], [x["accuracy"] for x in lines], f"{marker}-", label=name)
    print(f"{name:13} accuracy {lines[-1]['accuracy']:.3f}")
assert results["all weights"][1][-1]["accuracy"] > majority + 0.05
assert results["LoRA, rank 16"][1][-1]["accuracy"] > majority + 0.03
axes.axhline(majority, color="grey", linewidth=1, label="the most frequent label")
axes.set(xlabel="step", ylabel="validation accuracy", title="A class, a function or a method?")
axes.legend()
print(f"the most frequent label: {majority:.3f}")

# %% [markdown]
# A minute of pre-training teaches the base little. When all weights learn, they make up for it;
# factors of low rank learn more slowly from it, here in twice the steps, and from a base with less
# training (90 steps in place of 700) nothing at all. Adapters are for well-trained bases.

# %% [markdown]
# ## How many parameters learn
#
# A kernel of $d \times k$ has $d\, k$ parameters, its factors $r (d + k)$: with $r = 16$ and
# $d = k = 64$ a half, in a layer of $d = k = 4096$ one part in 128.

# %%
parameters = results["LoRA, rank 16"][0].model.parameters
(name,) = (name for name in parameters if name.endswith("query.kernel"))
layers, d, heads, width = parameters[name].shape
factors, kernel = lora.rank * (d + heads * width), d * heads * width
print(f"W^Q of a layer: {kernel:,}, its factors: {factors:,} ({factors / kernel:.0%})")
assert (factors, kernel) == (16 * (64 + 64), 64 * 64)
print(f"a layer with d = k = 4096: {16 * (4096 + 4096) / 4096**2:.2%}")

# %% [markdown]
# ## Predictions
#
# A run is loaded as a Hugging Face checkpoint is; `forward` takes and returns NumPy arrays.

# %%
model = jaxformer.load(folder / "whole")
labels = ["class", "function", "method"]
texts = ["Raised when a value is too large.", "Return the next line of this file."]
for text in texts:
    ids = model.tokenizer.encode(text).ids
    scores = jaxformer.forward(model, {"input_ids": np.array([ids])})["logits"][0]
    chances = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    print(
        f"{text:36}",
        dict(zip(labels, chances.astype(float).round(2).tolist(), strict=True)),
    )

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
