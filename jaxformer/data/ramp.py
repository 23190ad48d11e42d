"""Ramps: stages at the start of a run with other batch sizes and lengths of rows.

A row of a shorter stage is a part of one of the longest rows, whose order is that of a run without
a ramp. A step of a shorter stage reads whole longest rows, cut into parts, so that no token is
skipped or read twice, wherever a stage ends.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxformer.checks import at_least, check_field, check_fields, check_types, optional
from jaxformer.errors import ConfigError


@dataclass(frozen=True)
class Stage:
    """A part of a run with a separate batch size and optionally a separate row length.

    It begins where the previous stage ends; the first stage begins with the run.
    """

    batch_size: int
    """The rows of a step, over all hosts."""

    until_step: int | None = None
    """The step of the run at which the next stage begins; None: `until_tokens` sets it."""

    until_tokens: int | None = None
    """The tokens of the run after which the next stage begins, to the nearest step; None:
    `until_step` sets it. Padding counts too."""

    sequence_length: int | None = None
    """Tokens of a row, which must divide the final length; None: the final length."""

    def __post_init__(self):
        check_types(self, "data.ramp")
        check_fields(
            self,
            "data.ramp",
            batch_size=at_least(1),
            until_step=optional(at_least(1)),
            until_tokens=optional(at_least(1)),
            sequence_length=optional(at_least(1)),
        )
        one = (self.until_step is None) != (self.until_tokens is None)
        rule = "a number of steps, or None with until_tokens: exactly one of the two sets the end"
        check_field(self, "until_step", one, rule, "data.ramp")

    def shape(self) -> dict[str, int]:
        """Returns the fields of the data that this stage sets."""
        length = {"sequence_length": self.sequence_length}
        return {"batch_size": self.batch_size} | (length if self.sequence_length else {})


class Phase(NamedTuple):
    """The steps of a run whose batches have one shape: a stage, or the steps after all stages."""

    batch_size: int
    """The rows of a step, over all hosts."""
    data: Any = None
    """The data as if the whole run had this shape; None if there is only a batch size."""
    field: str = "data"
    """Where the shape is set, for messages."""
    start: int = 0
    """The first step, counted from 0."""
    stop: int | None = None
    """The first step of the next phase; None for the last phase."""
    first_row: int = 0
    """How many of the longest rows are read before this phase."""
    parts: int = 1
    """The number of rows into which one of the longest is cut."""

    def rows_before(self, step: int) -> int:
        """Returns the number of the longest rows that are read before a step of this phase."""
        return self.first_row + (step - self.start) * self.batch_size // self.parts

    def step_after(self, rows: float) -> int:
        """Returns the first step before which this many of the longest rows are read."""
        return self.start + math.ceil((rows - self.first_row) * self.parts / self.batch_size)


def phases_of(data: Any) -> tuple[Phase, ...]:
    """Returns the phases of a run in order, the last one without an end."""
    found, start, row, tokens = [], 0, 0, 0
    for number, stage in enumerate(data.ramp):
        field = f"data.ramp.{number}"
        shaped = _shaped(data, stage, field)
        parts = _parts(data, number)
        per_step = shaped.num_sequences * _length(shaped, stage, field)
        stop = _stop(stage, start, tokens, per_step, field)
        phase = Phase(stage.batch_size, shaped, field, start, stop, row, parts)
        found.append(phase)
        start, row = stop, phase.rows_before(stop)
        tokens += (stop - phase.start) * per_step
    last = data.without_ramp() if data.ramp else data
    return (*found, Phase(data.batch_size, last, "data", start, None, row))


def phase_at(phases: Sequence[Phase], step: int) -> Phase:
    """Returns the phase that a step belongs to."""
    return [phase for phase in phases if phase.start <= step][-1]


def same_start(old: Any, new: Any, steps: int) -> bool:
    """Whether a run may continue with another ramp: both have read the same rows in the same
    order.
    """
    runs = [phases_of(data) for data in (old, new)]
    started = [
        [(p.start, min(p.stop or steps, steps), p.batch_size, p.parts) for p in phases]
        for phases in ([p for p in phases if p.start < steps] for phases in runs)
    ]
    # The contents of the longest rows depend on all lengths.
    lengths = [{(p.parts, *p.data.lengths.items()) for p in phases} for phases in runs]
    return started[0] == started[1] and lengths[0] == lengths[1]


def linear_ramp(start: int, increment: int, batch_size: int, tokens: int) -> tuple[Stage, ...]:
    """Returns the stages of a batch size that grows linearly with the tokens, in equal increments.

    With n increments, stage i of 0, ..., n - 1 has start + i * increment rows and ends after
    (i + 1) / n of the tokens. Each stage compiles once.

    Args:
        start: Rows of the first steps.
        increment: The number of rows that each stage adds.
        batch_size: The final number of rows of a step: `start` and a whole number of increments.
        tokens: Tokens of the run after which `batch_size` is reached.

    Returns:
        The stages, the last of which has an increment less than `batch_size`.

    Raises:
        ConfigError: The increments do not add up to the batch size.

    References:
        Brown et al., section 2.3 (https://arxiv.org/abs/2005.14165), let the batch grow linearly;
        increments of equal length are those of Megatron-LM's --rampup-batch-size.
    """
    if not (1 <= start < batch_size and increment >= 1) or (batch_size - start) % increment:
        raise ConfigError(
            f"linear_ramp: start = {start}: must be below batch_size = {batch_size} by a multiple "
            f"of increment = {increment}"
        )
    sizes = range(start, batch_size, increment)
    ends = (tokens * number // len(sizes) for number in range(1, len(sizes) + 1))
    return tuple(Stage(size, until_tokens=end) for size, end in zip(sizes, ends, strict=True))


def _shaped(data: Any, stage: Stage, field: str) -> Any:
    """Returns the data with the shape of a stage."""
    if stage.sequence_length is not None and not data.takes_lengths:
        raise ConfigError(
            f"{field}.sequence_length = {stage.sequence_length}: must be None, because only rows "
            "of running text can be cut into shorter ones (DataConfig with any objective but "
            "SentencePairs); leave it out, and change batch_size alone"
        )
    try:
        return data.without_ramp(**stage.shape())
    except ConfigError as error:
        raise ConfigError(f"{field}: {error}") from error


def _parts(data: Any, number: int) -> int:
    """The number of rows of a stage into which the longest are cut."""
    stage, field = data.ramp[number], f"data.ramp.{number}"
    if stage.sequence_length is None:
        return 1
    length = stage.sequence_length
    longest = data.sequence_length
    before = max((s.sequence_length or longest for s in data.ramp[:number]), default=1)
    if longest % length or not before <= length <= longest:
        raise ConfigError(
            f"{field}.sequence_length = {length}: must divide data.sequence_length = {longest}, "
            "and be at least that of the stage before: rows only grow, by whole factors"
        )
    parts = longest // length
    if stage.batch_size % parts:
        raise ConfigError(
            f"{field}.batch_size = {stage.batch_size}: must be a multiple of {parts}, because rows "
            f"of {longest} tokens are each cut into {parts} of {length}"
        )
    return parts


def _length(data: Any, stage: Stage, field: str) -> int:
    """The number of tokens of a row, which must be known if a stage counts tokens."""
    lengths: Mapping[str, int] = data.lengths
    if stage.until_tokens is not None and (data.has_images or "inputs" not in lengths):
        raise ConfigError(
            f"{field}.until_tokens = {stage.until_tokens}: must be None, because these rows are "
            "not counted in tokens; set until_step"
        )
    return lengths.get("inputs", 0)


def _stop(stage: Stage, start: int, tokens: int, per_step: int, field: str) -> int:
    """The step at which a stage ends that begins at `start`, after `tokens` tokens."""
    if stage.until_step is not None:
        name = "until_step"
        value = stage.until_step
        least = start + 1
        stop = stage.until_step
    else:
        name = "until_tokens"
        value = stage.until_tokens
        least = tokens + per_step
        stop = start + (2 * (stage.until_tokens - tokens) + per_step) // (2 * per_step)
    if stop <= start:
        raise ConfigError(
            f"{field}.{name} = {value}: must be at least {least}, because the stage begins at "
            f"step {start} and takes at least one step; list stages in their order"
        )
    return stop
