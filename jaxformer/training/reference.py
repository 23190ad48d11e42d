"""The reference of preference losses: log-probabilities computed once and cached in the run."""

import dataclasses
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import rich.progress
from jax.sharding import PartitionSpec

from jaxformer.checkpoints.files import write_json
from jaxformer.config.experiment import Config, check_mesh
from jaxformer.data import Dataset, Datasets, ExampleSource
from jaxformer.data.chat.preferences.pairs import PairExamples
from jaxformer.distributed.processes import (
    agreed,
    device_batches,
    first_process_only,
    is_first,
    local_rows,
    of_first,
)
from jaxformer.errors import ConfigError, DataError
from jaxformer.functional.arrays import on_mesh, place
from jaxformer.io.files import (
    DIGESTS,
    check_digests,
    move_into_place,
    ordinary_file,
    read_json,
    remove_folder,
    temporary_folder,
    write_digests,
)
from jaxformer.io.paths import AnyPath
from jaxformer.models.heads.base import Batch, LossOptions
from jaxformer.models.parameters import Parameters
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.training.logging.progress import SECONDS_BETWEEN_LINES, duration
from jaxformer.training.preference_loss import REFERENCE, answers
from jaxformer.training.step import TrainProgram
from jaxformer.training.teacher import check_inputs, naming, read_model
from jaxformer.training.transfer.origin import check_known_tokenizer, check_same_tokenizer

_SIDES = {"train": "training", "validation": "validation"}
_VALUES, _RECORD = "logps.npy", "reference.json"
_log = logging.getLogger(__name__)


Reference = Callable[[Batch], tuple[np.ndarray, np.ndarray]]
"""Returns float32 [B, 2], the log-probabilities of both answers of an evaluation batch by a frozen
model, and int32 [B], the indices of the pairs."""


def with_references(
    config: Config,
    opened: Checkpoint | None,
    folder: AnyPath,
    data: Datasets,
    program: TrainProgram,
    start: Callable[[], Parameters],
) -> Datasets:
    """Adds the reference's log-probabilities of every answer to preference data.

    They are cached in `folder/reference-FINGERPRINT`, where the fingerprint identifies the pairs,
    and recomputed if missing or damaged.
    """

    @cache
    def reference() -> Reference:
        return _reference(config, opened, data, program, start)

    def of_pairs(side: str, dataset: Dataset) -> np.ndarray:
        home = folder / f"reference-{dataset.examples.fingerprint()}"
        shape = dataset.num_rows, 2
        kept = _load(home, shape) if is_first() else None
        if agreed(kept is not None):
            return np.asarray(of_first(np.zeros(shape, np.float32) if kept is None else kept))
        record = _record(config, opened, folder)
        first_process_only(lambda: _check_record(folder, record))
        logps = _computed(reference(), dataset, program, side)
        first_process_only(lambda: _save(home, logps, record))
        return logps

    sides = {}
    for side in _SIDES:
        if (dataset := getattr(data, side)) is not None:
            pairs = ReferencedPairs(dataset.examples, of_pairs(side, dataset))
            sides[side] = config.data.dataset(pairs, side)
    return dataclasses.replace(data, **sides)


class ReferencedPairs(ExampleSource):
    """Pairs of answers with the reference's log-probabilities, float32 [pairs, 2]."""

    def __init__(self, pairs: PairExamples, logps: np.ndarray):
        self._pairs, self._logps = pairs, logps

    def __len__(self) -> int:
        return len(self._pairs)

    def read(self, index: int, rng: np.random.Generator) -> Batch:
        """Returns the pair with the array `REFERENCE`."""
        return self._pairs.read(index, rng) | {REFERENCE: self._logps[index]}

    def blank(self) -> Batch:
        """Returns a row of the same shapes whose weights are 0."""
        return self._pairs.blank() | {REFERENCE: np.zeros(2, np.float32)}


def check_reference(config: Config, reference: Checkpoint, mesh: Mapping[str, int]) -> None:
    """Raises ConfigError unless a model can be the reference of a preference run."""
    model = reference.model
    with naming(f"train.preference.reference = {config.train.preference.reference}"):
        if type(model) is not type(config.model) or not model.predicts_next_token:
            raise ConfigError("it is not a decoder with a language-model head")
        check_inputs(config.model, model)
        model.check_lengths(model.row_lengths(config.data.lengths))
        check_mesh(model, mesh)
        check_known_tokenizer(config.data, reference)


def _reference(
    config: Config,
    opened: Checkpoint | None,
    data: Datasets,
    program: TrainProgram,
    start: Callable[[], Parameters],
) -> Reference:
    """Returns the reference that the run names, or its initial model."""
    options = LossOptions(chunk_size=config.train.loss_chunk)
    if config.train.preference.reference is None:
        model, parameters = program.abstract_model, start()
    else:
        check_same_tokenizer(data.tokenizer, opened)
        model, parameters = read_model(opened, program.mesh)

    @jax.jit
    def of_batch(parameters: Parameters, batch: Batch) -> tuple[jax.Array, jax.Array]:
        found = answers(model.module(parameters), batch, options)
        return tuple(place(x, PartitionSpec()) for x in (found.logps, batch["row"]))

    return lambda batch: jax.device_get(of_batch(parameters, batch))


# Cache -------------------------------------------------------------------------------------


def _load(home: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Reads cached log-probabilities, or removes damaged ones and returns None."""
    if not home.exists():
        return None
    try:
        check_digests(home / DIGESTS, (_VALUES, _RECORD))
        logps = np.load(ordinary_file(home / _VALUES), allow_pickle=False)
        if logps.shape != shape:
            raise DataError(f"{home / _VALUES} has the shape {logps.shape}: must be {shape}")
        return logps
    except (DataError, ValueError) as error:
        _log.warning("%s; computing the reference's log-probabilities again", error)
        remove_folder(home)
        return None


def _save(home: Path, logps: np.ndarray, record: dict[str, Any]) -> None:
    try:
        with temporary_folder(home) as temporary:
            np.save(temporary / _VALUES, logps)
            write_json(temporary / _RECORD, record)
            write_digests(temporary / DIGESTS, (_VALUES, _RECORD))
            move_into_place(temporary, home)
    except DataError as error:
        _log.warning("%s; the next start computes the reference's log-probabilities again", error)


def _record(config: Config, opened: Checkpoint | None, folder: AnyPath) -> dict[str, Any]:
    """Identifies the reference model."""
    named = config.train.preference.reference
    field = "train.preference.reference"
    if named is None:
        named, field = config.init_from, "init_from"
    if named is not None and opened is None:
        raise ConfigError(
            f"{field} = {named}: cannot be opened, and {folder} does not contain its "
            "log-probabilities of these pairs: restore that model, or start over with --fresh"
        )
    return {"reference": named, "step": None if named is None else opened.step}


def _check_record(folder: AnyPath, record: dict[str, Any]) -> None:
    """Raises ConfigError if cached log-probabilities of this run come from another reference."""
    for file in folder.glob(f"reference-*/{_RECORD}"):
        try:
            before = read_json(file)
        except DataError:  # damaged records are ignored
            continue
        if before != record:
            raise ConfigError(
                f"{folder} was started with the reference {before.get('reference')} at step "
                f"{before.get('step')}, and now {record['reference']} is at step "
                f"{record['step']}: restore that checkpoint, or start over with --fresh"
            )


# Computation ---------------------------------------------------------------------------------


def _computed(
    reference: Reference, dataset: Dataset, program: TrainProgram, side: str
) -> np.ndarray:
    """Computes the log-probabilities of all pairs, float32 [pairs, 2], on every process."""
    num_rows = dataset.batch_size // program.train.gradient_accumulation
    rows = local_rows(program.batch_sharding, num_rows)
    batches = device_batches(dataset.epoch(num_rows, rows=rows), program.batch_sharding, num_rows)
    logps = np.zeros((dataset.num_rows, 2), np.float32)
    words = f"reference log-probabilities of the {_SIDES[side]} pairs ({dataset.num_rows:,})"
    with on_mesh(program.mesh):
        for batch in _shown(batches, -(-dataset.num_rows // num_rows), words):
            values, numbers = reference(batch)
            logps[numbers[numbers >= 0]] = values[numbers >= 0]
    if not np.isfinite(logps).all():
        pair = int(np.argmin(np.isfinite(logps).all(axis=1)))
        where = dataset.examples.pairs[pair].where
        raise DataError(
            f"{where}: the reference assigns a non-finite log-probability to an answer of this pair"
        )
    return logps


def _shown(batches: Iterable[Any], total: int, words: str) -> Iterator[Any]:
    """Yields the batches and shows progress: a bar in a terminal, lines elsewhere."""
    if not is_first():
        yield from batches
        return
    if sys.stdout.isatty():
        yield from rich.progress.track(batches, words, total)
        return
    started = printed = time.monotonic()
    for done, batch in enumerate(batches):
        now = time.monotonic()
        if now - printed >= SECONDS_BETWEEN_LINES:
            printed = now
            print(f"{words}: {done / total:.0%} after {duration(now - started)}", flush=True)
        yield batch
    print(f"{words}: done in {duration(time.monotonic() - started)}", flush=True)
