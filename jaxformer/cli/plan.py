"""``jaxformer plan CONFIG --chips SLICE``: estimates the memory and speed of a job."""

import dataclasses
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from rich.table import Table
from rich.text import Text

from jaxformer.checkpoints.files import write_json
from jaxformer.checks import check_argument
from jaxformer.cli.options import part_of, split_config
from jaxformer.config.experiment import Config, check_has_model, load_config
from jaxformer.config.options import given, without
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec
from jaxformer.distributed.chips import CHIPS, GIB, find_chip
from jaxformer.distributed.slices import parse_chips
from jaxformer.errors import ArgumentError
from jaxformer.io.console import console
from jaxformer.plan import search
from jaxformer.plan.memory import GAPS
from jaxformer.plan.report import Plan
from jaxformer.plan.report import plan as make_plan
from jaxformer.plan.trace import check, check_without_mesh, checkpoint_model
from jaxformer.training.resolve import fill

_DESCRIPTION = """\
Estimates, without accelerators, whether a config fits on a slice of TPUs or on GPUs, the memory of
each device by purpose, the largest batch, the best mesh, and the time of a step and of the run.
CONFIG and the options that change its fields are the same as for `jaxformer train`:
--mesh.tensor 4. For TPUs the compiler confirms the memory if libtpu is installed.

  {prog} llama3_8b --chips v5p:4x4x4        a slice, by the topology of its chips
  {prog} llama3_8b --chips v6e:16x16*2      two slices, joined by the network
  {prog} t5:11b --chips h100:64             GPUs
  {prog} llama3_8b --chips v5p:4x4x4 --find the fastest mesh of a slice
  {prog} llama:llama3-405b --chips v5p --find   the smallest slice that holds it, and its mesh

Chips: {chips}
Configs: {names}"""


@dataclass(frozen=True)
class PlanOptions(Config):
    """Estimates the memory and speed of a config on a slice."""

    chips: str = ""
    """The slice: v5p:4x4x4, v6e:16x16*2 (two slices) or h100:64; with --find also just a chip."""
    find: bool = False
    """Find the fastest mesh of the slice, or of the smallest sufficient slice of a chip."""
    compile: bool = True
    """Run the TPU compiler, which takes a minute or two; --no-compile uses only the closed form."""
    price_per_chip_hour: float | None = None
    """Dollars per chip and hour, for the price of the run and of a million tokens."""
    json: Path | None = None
    """Write the plan to this file as JSON."""

    @property
    def experiment(self) -> Config:
        """The experiment without the other options."""
        return part_of(Config, self)


def plan(arguments: Sequence[str], prog: str = "jaxformer plan") -> None:
    """Prints the plan of the configured experiment."""
    usage = "--chips SLICE [OPTION ...]"
    name, remaining = split_config(arguments, prog, _DESCRIPTION, usage, chips=", ".join(CHIPS))
    # Only traces, so no accelerator is used.
    jax.config.update("jax_platforms", "cpu")
    options = _parsed(name, remaining, f"{prog} {name}")
    chooses_mesh = any(field.startswith("mesh.") for field in given(remaining))
    if not options.chips:
        raise ArgumentError(
            "chips: must name a slice, as --chips v5p:4x4x4, --chips h100:64, or --chips v5p --find"
        )
    if options.find and chooses_mesh:
        raise ArgumentError("--find chooses the mesh: leave out --mesh, or --find")
    price = options.price_per_chip_hour
    positive = price is None or 0 < price < math.inf
    check_argument("price-per-chip-hour", price, positive, "dollars above 0")
    found = None
    slice_ = None if options.find and ":" not in options.chips else parse_chips(options.chips)
    config = _filled_in(options.experiment)
    check_without_mesh(config)
    if slice_ is None:
        chip = find_chip(options.chips)
        _progress(f"searching the slices of {chip.name}")
        found = search.smallest(config, chip)
        slice_ = found.slice
    elif options.find:
        _progress(f"searching the meshes of {slice_.name}")
        found = search.winner(config, slice_)
    elif chooses_mesh:
        check(config, slice_)
    made = make_plan(config, slice_, found, compiling=options.compile, progress=_progress)
    made = dataclasses.replace(made, price=price)
    if options.json is not None:
        write_json(options.json, made.as_json())
    _print(name, made)


def _parsed(name: str, remaining: Sequence[str], prog: str) -> PlanOptions:
    """Parses the command line, whose options may change a checkpoint's model."""
    defaults = PlanOptions(**vars(load_config(config_spec(name))))
    if defaults.model is None and "model" not in given(remaining):
        first = parse(defaults, without(remaining, "model", "help"), prog)
        if first.init_from is not None:
            model = fill(first.experiment, labels_needed=False).config.model
            defaults = dataclasses.replace(defaults, model=model)
    return parse(defaults, remaining, prog)


def _filled_in(config: Config) -> Config:
    """Fills in the experiment from its checkpoint, if that is available locally."""
    check_has_model(config)
    is_open = getattr(config.data, "sequence_length", 0) is None
    origin, _ = (
        (None, "") if config.init_from is None else checkpoint_model(config.init_from, "init_from")
    )
    left_open = is_open or origin is not None
    return fill(config, labels_needed=False).config if left_open else config


def _progress(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _say(text: str | Table = "") -> None:
    console().print(text, highlight=False)


def _print(name: str, plan: Plan) -> None:
    config, slice_ = plan.config, plan.slice
    used = math.prod(vars(config.mesh).values())
    sizes = " x ".join(f"{axis} {size}" for axis, size in vars(config.mesh).items() if size > 1)
    idle = f", {slice_.num_devices - used} idle" if used < slice_.num_devices else ""
    parts = config.train.gradient_accumulation
    _say(
        f"{name} on {slice_.name}: {_count(slice_.chips, 'chip')}, "
        f"{_count(slice_.num_devices, 'device')}, {_count(slice_.hosts, 'host')}\n"
        f"mesh {sizes or 'of one device'}{idle}; {search.remat_text(config.model)}"
        f"{f', {parts} parts' if parts > 1 else ''}; {plan.stages[-1].batch_text} tokens; "
        f"{type(config.optimizer).__name__}"
    )
    if plan.impossible:
        _say(f"the config's mesh is impossible here, so this is the best one: {plan.impossible}")
    _say()
    _print_memory(plan)
    _print_speed(plan)
    for note in plan.notes:
        _say(f"note: {note}")
    _say(f"\n{_accuracy(plan)}")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _print_memory(plan: Plan) -> None:
    usable = plan.slice.chip.memory.value
    middle, most = GAPS
    gaps = f"without gaps between arrays, typically {middle:.0%} and up to {most:.0%} more"
    if plan.compiled is not None:
        gaps = f"with the gaps between arrays; {_gib(plan.peak_bytes)} without"
    _say(
        f"memory: {plan.verdict}: {_gib(plan.needed_bytes)} of {_gib(usable)} on each device "
        f"({plan.needed_bytes / usable:.0%}), {gaps}"
    )
    parts = sorted(plan.memory.parts.items(), key=lambda item: -item[1])
    rows = [(_gib(size), part) for part, size in parts if size >= 0.001 * plan.memory.peak]
    _say(_table(rows))
    batch = plan.largest_batch
    more = f"largest batch on this mesh: {batch:,} rows" if batch else "no batch fits on this mesh"
    _say(more)
    if not plan.fits:
        _say("\nthe largest arrays:")
        _say(_table(_largest(plan)))


def _largest(plan: Plan) -> list[tuple[str, ...]]:
    """Returns the largest arrays, from the compiler if it ran."""
    if plan.compiled is not None:
        found = plan.compiled.buffers[:8]
        return [(_gib(b.bytes), b.array, b.operation, b.source) for b in found]
    return [
        (_gib(size), f"{value.dtype}{list(value.shape)} of {maker}", value.source)
        for value, maker, size in plan.memory.buffers[:8]
    ]


def _print_speed(plan: Plan) -> None:
    step, chips = plan.step, plan.slice.chips
    _say(
        f"\nstep: {_time(step.seconds)}, bound by {step.binding}; MFU {step.mfu:.1%} (causal); "
        f"{step.tokens_per_second:,.0f} tokens/s, {step.tokens_per_second / chips:,.0f} a chip"
    )
    terms = sorted(step.terms.items(), key=lambda item: -item[1])
    shown = [(_time(size), term) for term, size in terms if size >= 0.001 * step.seconds]
    _say(_table(shown))
    if plan.days is not None:
        dollars = "" if plan.dollars is None else f", {plan.dollars:,.0f} dollars"
        _say(
            f"whole run: {plan.config.train.steps:,} steps in {_days(plan.days)}, "
            f"{plan.days * 24 * chips:,.1f} chip-hours{dollars}"
        )
    if plan.price is not None:
        _say(
            f"price: {plan.price:,g} dollars for a chip and hour, "
            f"{plan.price * chips:,.2f} for all; "
            f"{plan.dollars_per_million_tokens:,.4g} for a million tokens"
        )
    if plan.best is None:
        _say("this batch does not fit on any mesh of this slice")
        return
    _say(
        f"best mesh: {plan.best_options}\n  {_time(plan.best.step.seconds)} a step; {plan.best.why}"
    )


def _accuracy(plan: Plan) -> str:
    """Describes the accuracy of the figures."""
    assumptions = "; ".join(plan.memory.assumptions)
    if plan.compiled is None:
        return f"By closed form only ({plan.unconfirmed}): {assumptions}."
    closed = plan.memory.peak
    return (
        f"Memory by the TPU compiler ({plan.compiled.seconds:.0f} s); by closed form "
        f"{_gib(closed)} without gaps, {closed / plan.peak_bytes - 1:+.0%}. Time by closed form."
    )


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=True, show_header=False)
    for column in range(max((len(row) for row in rows), default=0)):
        table.add_column(justify="left" if column else "right", no_wrap=not column)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB" if size >= 0.01 * GIB else f"{1024 * size / GIB:.2f} MiB"


def _days(days: float) -> str:
    if days >= 1:
        return f"{days:,.1f} days"
    return f"{24 * days:.1f} hours" if days >= 1 / 24 else f"{1440 * days:.1f} minutes"


def _time(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-4 else f"{1e6 * seconds:.2f} us"
