"""Saving a training state with the digest of every file, compared with orbax without digests.

Both save the same items in the background, in turns. "Foreground" is the time that training waits,
and "written" the time until the checkpoint is complete. Then the digests are verified and the state
is restored, as in every command that opens a run.

    python benchmarks/checkpoint.py --output benchmarks/results/NAME.json
"""

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from harness import machine, seconds, write

from jaxformer.checkpoints import manifest
from jaxformer.checkpoints.checkpointer import Checkpointer
from jaxformer.checkpoints.restore import restore


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--megabytes", type=int, default=512, help="size of the state")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--output", type=Path, help="write the results as JSON")
    arguments = options.parse_args()

    rows = arguments.megabytes * 2**20 // (16 * 1024 * 4)
    keys = jax.random.split(jax.random.key(0), 16)
    state = {f"layer_{n}": jax.random.normal(key, (rows, 1024)) for n, key in enumerate(keys)}
    state = jax.block_until_ready(state)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        saved = alternate(state, folder, arguments.rounds)
        read = reading(state, folder, arguments.rounds)
    report = {
        name: {k: statistics.median(v) for k, v in rows.items()} for name, rows in saved.items()
    }
    for name, row in report.items():
        print(f"{name:18s} foreground {row['foreground']:.3f} s   written {row['written']:.3f} s")
    ours, plain = report["jaxformer"], report["orbax"]
    print(f"foreground: {ours['foreground'] / plain['foreground']:.2f}x of orbax's")
    print(f"written:    {ours['written'] / plain['written']:.2f}x of orbax's")
    print(f"verify {read['verify']:.3f} s, then restore {read['restore']:.3f} s")
    report |= {"megabytes": arguments.megabytes, "reading": read, "rounds": saved}
    write(arguments.output, {"machine": machine(), **report})


def alternate(state: dict, folder: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each save, jaxformer's and orbax's in turns; the first of each does not count."""
    ours = Checkpointer(folder / "jaxformer", {}, keep=1)
    handlers = ocp.CompositeCheckpointHandler(
        state=ocp.PyTreeCheckpointHandler(),
        config=ocp.JsonCheckpointHandler(),
        meta=ocp.JsonCheckpointHandler(),
    )
    plain = ocp.AsyncCheckpointer(handlers)
    items = ocp.args.Composite(
        state=ocp.args.PyTreeSave(state), config=ocp.args.JsonSave({}), meta=ocp.args.JsonSave({})
    )
    contenders: dict[str, tuple[Callable, Callable]] = {
        "jaxformer": (lambda step: ours.save(step, state), ours.wait),
        "orbax": (
            lambda step: plain.save(folder / "orbax" / str(step), args=items),
            plain.wait_until_finished,
        ),
    }
    found = {name: {"foreground": [], "written": []} for name in contenders}
    for step in range(1 + rounds):
        for name, (save, wait) in contenders.items():
            foreground = seconds(lambda save=save, step=step: save(step))
            written = foreground + seconds(wait)
            if step:
                found[name]["foreground"].append(foreground)
                found[name]["written"].append(written)
        shutil.rmtree(folder / "orbax" / str(step))
    ours.close()
    plain.close()
    return found


def reading(state: dict, folder: Path, rounds: int) -> dict[str, float]:
    """The median seconds of verifying every byte and of restoring, from a warm disk cache."""
    step_folder = folder / "jaxformer" / str(rounds)
    target = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.float32, sharding=x.sharding), state
    )
    actions = {
        "verify": lambda: manifest.damage(step_folder),
        "restore": lambda: jax.block_until_ready(restore(step_folder, target)),
    }
    return {
        name: statistics.median(seconds(action) for _ in range(3))
        for name, action in actions.items()
    }


if __name__ == "__main__":
    main()
