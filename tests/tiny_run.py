"""A training run small enough to be killed, restarted and repeated many times."""

import contextlib
import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

from ports import free_address

from jaxformer.checkpoints.checkpointer import content_hash
from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.restore import read_arrays
from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, Packed, StandardLibrary
from jaxformer.distributed import MeshConfig
from jaxformer.models import DecoderConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.training.logging.metrics_writer import read_metrics

ROOT = Path(__file__).parents[1]

# The same experiment as `tiny_config`, as the file that train.py reads. tensorboardX would import
# PyTorch in each process, a fifth of its time.
EXPERIMENT = """
from tiny_run import tiny_config


def get_config():
    return tiny_config(loggers=())
"""


def tiny_config(**train) -> Config:
    """A layer on packed bytes, with dropout and accumulation on."""
    settings = {
        "steps": 12,
        "gradient_accumulation": 2,
        "eval_interval": 5,
        "checkpoint_interval": 4,
        "log_interval": 1,
        "sample_tokens": 0,
    }
    return Config(
        model=DecoderConfig(
            vocab_size=264,
            num_layers=1,
            model_dim=32,
            num_heads=4,
            mlp_dim=64,
            dropout=0.1,
            compute_dtype="float32",
            scan_layers=False,
        ),
        data=DataConfig(
            source=StandardLibrary(max_bytes=120_000),
            tokenizer=Bytes(),
            packing=Packed(),
            sequence_length=48,
            batch_size=8,
            max_validation_batches=2,
        ),
        optimizer=AdamW(schedule=Cosine(learning_rate=5e-3, warmup_steps=3)),
        train=TrainConfig(**(settings | train)),
    )


def on_mesh(config: Config, **sizes) -> Config:
    return dataclasses.replace(config, mesh=MeshConfig(**sizes))


def train_until(step: int, config: Config, run_dir: Path):
    """Trains until the process is asked to stop in a step; returns the result."""
    from jaxformer.training import loop

    class Signal(contextlib.nullcontext):
        def __enter__(self):
            return self

        def requested(self, now):
            return now == step

    with mock.patch.object(loop, "StopSignal", Signal):
        return loop.train(config, run_dir)


def hash_of(run_dir: Path, step: int) -> str:
    """The hash of the parameters and the optimizer state of a checkpoint, bit for bit."""
    return content_hash(read_arrays(run_dir / "checkpoints" / str(step)))


def losses_of(run_dir: Path) -> list[tuple[int, str, float | None]]:
    """The step, the split and the loss of every row of a run."""
    return [(row["step"], row["split"], row.get("loss")) for row in read_metrics(run_dir)]


def contents(path: Path) -> dict[str, bytes | None]:
    """The bytes of a file, or of each below a folder; None for folders."""
    return {
        os.path.relpath(each, path): each.read_bytes() if each.is_file() else None
        for each in [path, *path.rglob("*")]
    }


def has_saved(run_dir: Path, step: int) -> bool:
    """Whether the checkpoint of a step is complete; one whose process is killed before is not."""
    return step in saved_steps(run_dir / "checkpoints")


def steps_logged(run_dir: Path) -> int:
    """How many rows of training steps a run has written, which may be training."""
    metrics = run_dir / "metrics.jsonl"
    return metrics.read_text().count("train") if metrics.exists() else 0


def wait_for(condition, *processes: subprocess.Popen, pause: float = 0.01) -> None:
    """Waits until a condition holds, before which none of the processes may end."""
    deadline = time.monotonic() + 300
    while not condition():
        ended = [process for process in processes if process.poll() is not None]
        assert not ended, ended[0].communicate()
        assert time.monotonic() < deadline
        time.sleep(pause)


def finish_all(processes: list[subprocess.Popen]) -> list[str]:
    """Waits for processes, all of which must succeed; returns their outputs."""
    outputs = [process.communicate(timeout=300)[0] for process in processes]
    assert not any(process.returncode for process in processes), "\n".join(outputs)
    return outputs


class Runs:
    """Starts train.py as a user does, in separate processes that share compiled programs.

    They compile as quickly as the tests do (conftest.py), into a separate folder: what is
    written there while a process is killed may be damaged.
    """

    def __init__(self, folder: Path):
        self.experiment = folder / "tiny.py"
        self.experiment.write_text(EXPERIMENT)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}
        self.environment = inherited | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        }

    def start(self, run_dir: Path, *options: str, **environment: str) -> subprocess.Popen:
        command = [sys.executable, ROOT / "train.py", self.experiment, "--run-dir", run_dir]
        return subprocess.Popen(
            [*map(str, command), *options],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def start_two(self, run_dir: Path, *options: str, **environment: str):
        """Starts two processes that train one run together."""
        job = ("--job.coordinator", free_address(), "--job.num-processes", "2", "--job.process-id")
        return [self.start(run_dir, *options, *job, index, **environment) for index in ("0", "1")]

    def finish(self, run_dir: Path, *options: str, **environment: str) -> str:
        """Runs to the end; returns the output."""
        return finish_all([self.start(run_dir, *options, **environment)])[0]
