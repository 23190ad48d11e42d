"""``jaxformer plan CONFIG --chips SLICE``: what a job needs and how fast it goes."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxformer.cli.options import split_subject
from jaxformer.config.experiment import Config, load_config
from jaxformer.config.overrides import parse
from jaxformer.config.shipped import config_spec, shipped_names
from jaxformer.distributed.chips import CHIPS, GIB, find_chip
from jaxformer.errors import ArgumentError
from jaxformer.io.console import console
from jaxformer.io.files import replacing
from jaxformer.plan import search
from jaxformer.plan.report import Plan
from jaxformer.plan.report import plan as make_plan
from jaxformer.plan.slices import parse_chips

_DESCRIPTION = """\
Says, on a laptop, whether a config fits on a slice of TPUs or on GPUs, how much memory each device
needs and for what, the largest batch, the best mesh, and how long a step and the whole run take.
CONFIG is what `jaxformer train` takes, and options change its fields in the same way:
--mesh.tensor 4. For TPUs the compiler confirms the memory, where libtpu is installed.

  {prog} llama3_8b --chips v5p:4x4x4        a slice, by the topology of its chips
  {prog} llama3_8b --chips v6e:16x16*2      two slices, joined by the network
  {prog} t5:11b --chips h100:64             GPUs
  {prog} llama:llama3-405b --chips v5p --find   the smallest slice that holds it

Chips: {chips}
Configs: {names}"""


@dataclass(frozen=True)
class PlanOptions(Config):
    """Says what a config needs on a slice, and how fast it goes."""

    chips: str = ""
    """The slice: v5p:4x4x4, v6e:16x16*2 (two slices) or h100:64; a chip alone with --find."""
    find: bool = False
    """Find the smallest slice of the chip that holds the config, on the mesh that is best there."""
    compile: bool = True
    """Ask the TPU compiler, which takes minutes; --no-compile: by closed form alone."""
    json: Path | None = None
    """Write the plan to this file as JSON."""

    @property
    def experiment(self) -> Config:
        """The experiment alone."""
        parts = [field.name for field in dataclasses.fields(Config)]
        return Config(**{name: getattr(self, name) for name in parts})


def plan(arguments: Sequence[str], prog: str = "jaxformer plan") -> None:
    """Prints the plan of the experiment that a command line describes."""
    names = {"names": ", ".join(shipped_names()), "chips": ", ".join(CHIPS)}
    name, options = split_subject(
        arguments,
        "an experiment",
        f"{prog} CONFIG --chips SLICE [OPTION ...]",
        _DESCRIPTION.format(prog=prog, **names),
    )
    config = load_config(config_spec(name))
    wanted = parse(PlanOptions(**vars(config)), options, f"{prog} {name}")
    if not wanted.chips:
        raise ArgumentError(
            "chips: must name a slice, as --chips v5p:4x4x4, --chips h100:64, or --chips v5p --find"
        )
    # Everything is traced here, and nothing runs: not on an accelerator either, if there is one.
    jax.config.update("jax_platforms", "cpu")
    found = None
    if wanted.find:
        chip = find_chip(wanted.chips)
        _progress(f"searching the slices of {chip.name}")
        found = search.smallest(wanted.experiment, chip)
    experiment = found.config if found else wanted.experiment
    slice_ = found.slice if found else parse_chips(wanted.chips)
    made = make_plan(experiment, slice_, found, compiling=wanted.compile, progress=_progress)
    if wanted.json is not None:
        with replacing(wanted.json) as temporary:
            temporary.write_text(json.dumps(made.as_json(), indent=1) + "\n")
    _print(name, made, console())


def _progress(text: str) -> None:
    print(f"{text} ...", file=sys.stderr, flush=True)


def _print(name: str, plan: Plan, out: Console) -> None:
    config, slice_ = plan.config, plan.slice
    sizes = " x ".join(f"{axis} {size}" for axis, size in vars(config.mesh).items() if size > 1)
    lengths = " + ".join(f"{length:,}" for length in config.row_lengths.values())
    out.print(
        f"{name} on {slice_.name}: {slice_.chips} chips, {slice_.num_devices} devices, "
        f"{slice_.hosts} hosts\nmesh {sizes or 'of one device'}; {config.data.batch_size:,} rows "
        f"of {lengths} tokens; {type(config.optimizer).__name__}\n",
        highlight=False,
    )
    _print_memory(plan, out)
    _print_speed(plan, out)
    out.print(f"\n{_trust(plan)}", highlight=False)


def _print_memory(plan: Plan, out: Console) -> None:
    usable = plan.slice.chip.memory.value
    verdict = "fits" if plan.fits else "does not fit"
    out.print(
        f"memory: {verdict}: {_gib(plan.peak_bytes)} of {_gib(usable)} on each device "
        f"({plan.peak_bytes / usable:.0%})",
        highlight=False,
    )
    parts = sorted(plan.memory.parts.items(), key=lambda item: -item[1])
    rows = [(_gib(size), part) for part, size in parts if size >= 0.001 * plan.memory.peak]
    out.print(_table(rows))
    batch = plan.largest_batch
    more = f"largest batch on this mesh: {batch:,} rows" if batch else "no batch fits on this mesh"
    out.print(more, highlight=False)
    if not plan.fits:
        out.print("\nthe largest arrays:", highlight=False)
        out.print(_table(_largest(plan)))


def _largest(plan: Plan) -> list[tuple[str, ...]]:
    """The arrays to look at: those of the compiler, where it was asked."""
    if plan.compiled is not None:
        found = plan.compiled.buffers[:8]
        return [(_gib(b.bytes), b.array, b.operation, b.source) for b in found]
    return [(_gib(b.bytes), b.text, b.source) for b in plan.memory.buffers[:8]]


def _print_speed(plan: Plan, out: Console) -> None:
    step, chips = plan.step, plan.slice.chips
    out.print(
        f"\nstep: {_time(step.seconds)}, bound by {step.binding}; MFU {step.mfu:.1%} (causal); "
        f"{step.tokens_per_second:,.0f} tokens/s, {step.tokens_per_second / chips:,.0f} a chip",
        highlight=False,
    )
    terms = sorted(step.terms.items(), key=lambda item: -item[1])
    out.print(_table([(_time(seconds), term) for term, seconds in terms]))
    if plan.days is not None:
        out.print(
            f"whole run: {plan.config.train.steps:,} steps in {plan.days:,.1f} days, "
            f"{plan.days * 24 * chips:,.0f} chip-hours",
            highlight=False,
        )
    if plan.best is None:
        out.print("no mesh of this slice holds this batch", highlight=False)
        return
    out.print(
        f"best mesh: {plan.best_options}\n  {_time(plan.best.step.seconds)} a step; "
        f"{plan.best.why}",
        highlight=False,
    )


def _trust(plan: Plan) -> str:
    """How far the figures can be trusted."""
    said = "; ".join(plan.memory.assumptions)
    if plan.compiled is None:
        return f"By closed form alone ({plan.unconfirmed}): {said}."
    closed = plan.memory.peak
    return (
        f"Memory by the TPU compiler ({plan.compiled.seconds:.0f} s); by closed form "
        f"{_gib(closed)}, {closed / plan.peak_bytes - 1:+.0%}. Time by closed form."
    )


def _table(rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, pad_edge=True, show_header=False)
    for column in range(max((len(row) for row in rows), default=0)):
        table.add_column(justify="left" if column else "right", no_wrap=not column)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _gib(size: float) -> str:
    return f"{size / GIB:.2f} GiB"


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1000 * seconds:.2f} ms"
