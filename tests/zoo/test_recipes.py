"""The recipes in configs/: one for every system of the zoo, at every size."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import wavfile

from jaxformer.config import load_config, validate
from jaxformer.data import Bytes, JsonLines
from jaxformer.data.tasks import ImageFolder, Images, MaskedSounds, ParallelText, SpeechToText
from jaxformer.errors import ConfigError
from jaxformer.io.serialization import diff
from jaxformer.training.logging.throughput import RunWork
from jaxformer.zoo import SYSTEMS
from jaxformer.zoo.recipes import choose, padded, sizes_of

CONFIGS = Path(__file__).parents[2] / "configs"
TRAINED = {name: system for name, system in SYSTEMS.items() if system.recipe}
FILES = sorted({system.recipe.split(":")[0] for system in TRAINED.values()})

each_system = pytest.mark.parametrize("system", TRAINED.values(), ids=TRAINED.keys())
each_recipe = pytest.mark.parametrize("file", FILES)

# What training adds to an architecture.
ADDED = {
    "vocab_size",
    "dropout",
    "self_attention.dropout",
    "init_std",
    "depth_scaled_init",
    "remat",
    "feature_dropout",
    "span_masking.time_probability",
    "heads",
}


@each_system
def test_the_recipe_trains_the_system(system):
    config = load_config(str(CONFIGS / system.recipe))
    model = config.model
    changed = {
        name.removeprefix("encoder.").removeprefix("decoder.")
        for name in diff(system.config, model)
    }
    assert type(model) is type(system.config)
    assert changed <= ADDED
    if "vocab_size" in changed:
        assert model.vocab_size == padded(system.config.vocab_size)
    for devices in (1, 8, 32):
        validate(config, devices)


@each_recipe
def test_a_recipe_needs_no_size_and_knows_its_sizes(file):
    sizes = sizes_of(file)
    assert sizes
    default, first = (
        load_config(str(CONFIGS / file)),
        load_config(f"{CONFIGS / file}:{next(iter(sizes))}"),
    )
    if file != "llama.py":  # whose best known size is not the first
        assert default == first
    with pytest.raises(ConfigError, match=re.escape(", ".join(sizes))) as error:
        load_config(f"{CONFIGS / file}:unknown")
    assert f"configs/{file} has no size 'unknown'" in str(error.value)


@pytest.mark.parametrize(
    ("alias", "recipe"),
    [
        ("gpt2_small.py", "gpt2.py:small"),
        ("llama3_8b.py", "llama.py:llama3-8b"),
        ("mistral_7b.py", "mistral.py:7b"),
    ],
)
def test_the_older_names_are_the_recipes_of_their_sizes(alias, recipe):
    assert load_config(str(CONFIGS / alias)) == load_config(str(CONFIGS / recipe))


def test_the_ramp_of_llama_3_reads_the_published_tokens():
    plain, ramped = (
        load_config(f"{CONFIGS / 'llama.py'}:llama3-405b{end}") for end in ("", "-ramp")
    )
    work, steps = RunWork.of(ramped), ramped.train.steps
    assert ramped.model == plain.model
    shapes = [(stage.tokens, stage.rows) for stage in work.stages]
    assert shapes == [(2**22, 1024), (2**23, 1024), (2**24, 2048)]
    starts = [work.tokens(stage.start) for stage in work.stages]
    assert starts == pytest.approx([0, 252e6, 2.87e12], rel=2e-3)
    assert work.tokens(steps) == pytest.approx(15.6e12, abs=2**24)
    assert steps < ramped.optimizer.schedule.decay_steps == plain.train.steps
    for devices in (8, 32):
        validate(ramped, devices)
    with pytest.raises(ConfigError, match="no size 'llama-7b-ramp'"):
        load_config(f"{CONFIGS / 'llama.py'}:llama-7b-ramp")


def test_a_padded_vocabulary_is_the_next_multiple_of_128():
    assert [padded(size) for size in (1, 128, 129, 50257)] == [128, 128, 256, 50304]


def test_a_size_is_a_system():
    assert choose("bert.py", "large") is SYSTEMS["bert-large"]
    assert list(sizes_of("t5.py")) == ["small", "base", "large", "3b", "11b"]


# Batches ----------------------------------------------------------------------------------------


def small(data, folder):
    """The data of a recipe made of a few short texts or images: the same arrays, shorter rows."""
    if isinstance(data, Images):
        for label in ("cat", "dog"):
            (folder / label).mkdir()
            for number in range(8):
                Image.new("RGB", (16, 16)).save(folder / label / f"{number}.png")
        source = ImageFolder(str(folder))
        return replace(data, source=source, validation_source=None, batch_size=2)
    if isinstance(data, MaskedSounds):
        soundfile = pytest.importorskip("soundfile")
        for number in range(8):
            noise = np.random.default_rng(number).standard_normal(32_000) / 5
            soundfile.write(folder / f"{number}.wav", noise, 16_000)
        fields = {"max_seconds": 2.0, "batch_size": 2, "validation_fraction": 0.3}
        return replace(data, train=str(folder), **fields)
    if isinstance(data, SpeechToText):
        silence = np.zeros(8000, np.int16)
        rows = ["audio,text", *(f"{number}.wav,Text {number}." for number in range(40))]
        for number in range(40):
            wavfile.write(folder / f"{number}.wav", 16_000, silence)
        (folder / "clips.csv").write_text("\n".join(rows))
        table = str(folder / "clips.csv")
        return replace(data, train=table, tokenizer=Bytes(), target_length=32, batch_size=2)
    texts = [f"Text {number}. " + "abc def. " * number for number in range(40)]
    if isinstance(data, ParallelText):
        (folder / "lines").write_text("\n".join(texts))
        lines = str(folder / "lines")
        return replace(data, source=lines, target=lines, tokenizer=Bytes(), batch_size=2)
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    source = JsonLines(str(folder / "texts.jsonl"))
    return replace(
        data,
        source=source,
        tokenizer=Bytes(),
        sequence_length=32,
        batch_size=2,
        validation_fraction=0.2,
    )


@each_recipe
def test_the_data_make_the_batch_that_the_lowered_step_reads(file, tmp_path):
    config = load_config(str(CONFIGS / file))
    (tmp_path / "corpus").mkdir()
    config = replace(config, data=small(config.data, tmp_path / "corpus"))
    batch = config.data.prepare(tmp_path / "run").train.batch(0)
    made = {name: (x.shape, np.dtype(x.dtype)) for name, x in batch.items()}
    shapes = config.model.batch_spec(config.data.batch_size, config.batch_lengths)
    read = {name: (x.shape, np.dtype(x.dtype)) for name, x in shapes.items()}
    # Kinds that an objective does not tell apart are 0 throughout.
    silent = {"token_types", "task_types"} - made.keys()
    assert made == {name: shape for name, shape in read.items() if name not in silent}
