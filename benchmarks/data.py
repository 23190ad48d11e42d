"""Rows per second of one thread of the data pipeline, compared with those that a step consumes.

Each objective on the data of its experiment (no download), compared with the training step of that
experiment. First the data are timed, then the step.

    python benchmarks/data.py --output benchmarks/results/NAME.json
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import jax
from harness import machine, write

from jaxformer.config import load_config
from jaxformer.data import (
    CorpusOptions,
    Denoising,
    MaskedLM,
    Mixture,
    SentencePairs,
    StandardLibrary,
)
from jaxformer.data.tasks import HorizontalFlip, Mixup, RandomCrop
from jaxformer.distributed import MeshConfig, make_mesh
from jaxformer.training.step import TrainProgram

CONFIGS = Path(__file__).parents[1] / "configs"
WARM_UP = 3
MIXTURE = Mixture((StandardLibrary(max_bytes=1 << 21), StandardLibrary()), weights=(0.7, 0.3))
# The objective -> its experiment, and the changed fields of the data.
OBJECTIVES = {
    "next token": ("tiny_decoder", {}),
    "next token, shards": ("tiny_decoder", {"corpus": CorpusOptions(shard_bytes=1 << 20)}),
    "next token, mixture": ("tiny_decoder", {"source": MIXTURE}),
    "masked tokens": ("tiny_encoder_mlm", {}),
    "masked words": ("tiny_encoder_mlm", {"objective": MaskedLM(whole_word=True)}),
    "masked spans": ("tiny_encoder_mlm", {"objective": MaskedLM(max_span=10)}),
    "sentence pairs": ("tiny_encoder_mlm", {"objective": SentencePairs()}),
    "span corruption": ("tiny_seq2seq_span_corruption", {}),
    "denoising": ("tiny_seq2seq_span_corruption", {"objective": Denoising()}),
    "translation": ("tiny_translation", {}),
    "tags": ("tiny_encoder_tagging", {}),
    "images": ("tiny_vit", {}),
    "images, augmented": (
        "tiny_vit",
        {"augmentation": (HorizontalFlip(), RandomCrop(padding=1), Mixup(alpha=0.2))},
    ),
}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--batches", type=int, default=60, help="batches of data to time")
    options.add_argument("--steps", type=int, default=12, help="steps to time")
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    consumed, results = {}, []
    print(f"{'objective':20s} rows/s made   consumed   ratio   tokens/s made")
    for name, (experiment, changes) in OBJECTIVES.items():
        config = load_config(str(CONFIGS / f"{experiment}.py"))
        with tempfile.TemporaryDirectory() as folder:
            data = replace(config.data, **changes)
            dataset = data.prepare(Path(folder)).train
            made = rows_per_second(dataset.batch, arguments.batches, data.batch_size)
            if experiment not in consumed:
                consumed[experiment] = consumption(config, dataset, arguments.steps)
        row = {"objective": name, "experiment": experiment, "rows_per_second": made}
        row |= {"consumed": consumed[experiment], "ratio": made / consumed[experiment]}
        row["tokens_per_second"] = made * config.row_lengths["inputs"]
        results.append(row)
        print(
            f"{name:20s} {made:11.0f} {row['consumed']:10.0f} {row['ratio']:6.0f}x "
            f"{row['tokens_per_second']:15.0f}"
        )
    write(arguments.output, {"machine": machine(), "results": results})


def consumption(config, dataset, steps: int) -> float:
    """Rows per second of a training step on data in memory."""
    mesh = make_mesh(MeshConfig(data=1))
    program = TrainProgram(config.model, config.optimizer, config.train, mesh)
    batch = {n: jax.device_put(x, program.batch_sharding) for n, x in dataset.batch(0).items()}
    state = program.init(0)

    def step(_):
        nonlocal state
        state, _ = program.train_step(state, batch)
        jax.block_until_ready(state.params)

    return rows_per_second(step, steps, config.data.batch_size)


def rows_per_second(work, count: int, rows: int) -> float:
    """The median rate over calls with 0, 1, ..., after warm-up calls."""
    seconds = []
    for number in range(WARM_UP + count):
        start = time.perf_counter()
        work(number)
        seconds.append(time.perf_counter() - start)
    return rows / statistics.median(seconds[WARM_UP:])


if __name__ == "__main__":
    main()
