"""The report of an extrapolation study: tables, curves and the ranking of the schemes."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.data.tasks.algorithmic import RULES
from jaxformer.lab.drawing import COLOURS, canvas, frame
from jaxformer.lab.studies.curves import Curve, draw, lengths_axis
from jaxformer.lab.studies.extrapolation import TEXT, Extrapolation
from jaxformer.lab.studies.report import Section, Spread, seeds_text, spread, write_report
from jaxformer.lab.studies.schemes import SCHEMES
from jaxformer.lab.studies.study import Result

FIGURE_1 = ("alibi", "t5", "rope", "sinusoidal")
"""The schemes in figure 1 of the ALiBi paper, the best beyond the training length first."""

_SOURCE = {name: scheme.trained_as or name for name, scheme in SCHEMES.items()}
_MODELS = list(dict.fromkeys(_SOURCE.values()))
_DASHES = {"rope-linear": "--", "rope-yarn": ":"}


def records(plan: Extrapolation, results: Mapping[str, Result]) -> list[dict[str, Any]]:
    """Returns one row for each task, scheme, seed and length."""
    found = []
    for seed in range(plan.seeds):
        for task in plan.chosen_tasks:
            for scheme in plan.chosen_schemes:
                run = results[f"{task}-{_SOURCE[scheme]}-seed{seed}"]
                setting = {"task": task, "scheme": scheme, "seed": seed}
                if run.diverged:
                    found.append(setting | {"diverged": run.diverged})
                found += [setting | row for row in run.measured.get(scheme, ())]
    return found


class Table:
    """All numbers of a study, by task, scheme and multiple of the training length."""

    def __init__(self, rows: Sequence[Mapping[str, Any]]):
        self._values: dict[tuple[str, str, int], list[Mapping[str, Any]]] = defaultdict(list)
        for row in rows:
            if "loss" in row:
                self._values[row["task"], row["scheme"], row["factor"]].append(row)

    def values(self, task: str, scheme: str, factor: int, metric: str) -> list[float]:
        """Returns a metric for every seed; empty if the scheme does not support the length."""
        rows = self._values[task, scheme, factor]
        if metric == "perplexity":
            return [float(np.exp(row["loss"])) for row in rows]
        return [row[metric] for row in rows]

    def spread(self, task: str, scheme: str, factor: int, metric: str) -> Spread | None:
        """Returns the spread of a metric over the seeds, or None."""
        values = self.values(task, scheme, factor, metric)
        return spread(values) if values else None

    def growth(self, scheme: str, factor: int, first: int) -> Spread | None:
        """Returns the ratio of the perplexities at two lengths, over the seeds."""
        losses = [self.values(TEXT, scheme, f, "loss") for f in (factor, first)]
        return spread(np.exp(np.subtract(*losses)).tolist()) if all(losses) else None

    def order(self, schemes: Sequence[str], factor: int, first: int | None = None) -> list[str]:
        """Returns the schemes that support this length, best first."""
        found = {}
        for scheme in schemes:
            own = self.spread(TEXT, scheme, factor, "loss")
            own = own if first is None else self.growth(scheme, factor, first)
            if own is not None:
                found[scheme] = own.mean
        return sorted(found, key=found.get)

    def beyond(self, task: str, scheme: str, factors: Sequence[int], metric: str) -> Spread | None:
        """Returns the mean of a metric beyond the training length, over the seeds."""
        longer = [self.values(task, scheme, f, metric) for f in factors if f > 1]
        if not longer or not all(longer):
            return None
        return spread(np.mean(longer, axis=0).tolist())


def write_extrapolation(plan: Extrapolation, results: Mapping[str, Result]) -> list[Path]:
    """Writes the report of a finished study."""
    rows = records(plan, results)
    table = Table(rows)
    sections = []
    if TEXT in plan.chosen_tasks:
        sections.append(text_section(plan, table))
        if len(plan.multiples) > 1:
            sections.append(growth_section(plan, table))
    if any(task != TEXT for task in plan.chosen_tasks):
        sections += task_sections(plan, table)
    lost = sum("diverged" in row for row in rows)
    if lost:
        text = f"{lost} of the models diverged; the means are over the others."
        sections.append(Section("Diverged", [text]))
    return write_report(plan.out, "Positions beyond the training length", sections, rows)


def text_section(plan: Extrapolation, table: Table) -> Section:
    """Returns the section on perplexity against length, with the ranking of the schemes."""
    lengths = [factor * plan.text_length for factor in plan.multiples]
    text = [
        f"Decoders are trained for {plan.steps} steps on rows of {plan.text_length} tokens of "
        f"Python's standard library, with {seeds_text(plan.seeds)}. Each is tested on the same "
        "tokens of held-out text, cut into rows of each length. Cells are the perplexity: the "
        "mean over the seeds, and in brackets the minimum and the maximum. A dash means that the "
        "scheme does not support the length."
    ]
    text += _orders(plan, table)
    rows = [
        [SCHEMES[s].title, *(_cell(table.spread(TEXT, s, f, "perplexity")) for f in plan.multiples)]
        for s in plan.chosen_schemes
    ]
    title = f"Trained on rows of {plan.text_length} tokens, tested on longer ones"
    figure, ((axes,),) = canvas(title, (8.0, 4.6))
    x = "tokens of a test row (dotted: the training length)"
    y = "perplexity (lower is better)"
    frame(axes, "", x, y)
    draw(axes, _curves(plan, table, TEXT, "perplexity", plan.text_length), marker="o")
    lengths_axis(axes, lengths, plan.text_length)
    axes.set_yscale("log")
    _plain_numbers(axes)
    figure.legend(loc="outside right center", frameon=False, fontsize=9)
    caption = "Perplexity of held-out text against the length of the rows, for each scheme."
    return Section("Text", text, ["scheme", *map(str, lengths)], rows, figure, caption, "text")


def growth_section(plan: Extrapolation, table: Table) -> Section:
    """Returns the section on how the perplexity of each scheme grows with the length."""
    first, *longer = plan.multiples
    text = [
        f"The perplexity at each length over that of the same model at {first * plan.text_length} "
        "tokens: what a longer row costs (above 1) or gives (below 1), wherever a model starts."
    ]
    text += _orders(plan, table, first)
    if set(FIGURE_1) <= set(plan.chosen_schemes):
        text.append(_figure_1(plan, table))
    rows = [
        [SCHEMES[s].title, *(_cell(table.growth(s, f, first), digits=3) for f in longer)]
        for s in plan.chosen_schemes
    ]
    header = ["scheme", *(str(factor * plan.text_length) for factor in longer)]
    return Section("Text: growth of the perplexity", text, header, rows)


def task_sections(plan: Extrapolation, table: Table) -> list[Section]:
    """Returns the sections on the accuracy of the algorithmic tasks."""
    tasks = [task for task in plan.chosen_tasks if task != TEXT]
    header = ["scheme", *(task.replace("_", " ") for task in tasks)]
    longer = [factor for factor in plan.multiples if factor > 1]
    about = (
        f"Decoders are trained for {plan.task_steps} steps on inputs of at most "
        f"{plan.task_length} symbols, with {seeds_text(plan.seeds)}. Cells are the mean over the "
        "seeds, and in brackets the minimum and the maximum."
    )

    def rows(cell) -> list[list[str]]:
        return [
            [SCHEMES[s].title, *(_cell(cell(t, s)) for t in tasks)] for s in plan.chosen_schemes
        ]

    chances = ", ".join(f"{task.replace('_', ' ')} {RULES[task].chance:.2f}" for task in tasks)
    sections = []
    if 1 in plan.multiples:
        text = [about, f"Inputs have {plan.task_length} symbols. A guess reaches: {chances}."]
        found = rows(lambda task, scheme: table.spread(task, scheme, 1, "accuracy"))
        sections.append(Section("Tasks: accuracy at the training length", text, header, found))
    if longer:
        lengths = ", ".join(str(factor * plan.task_length) for factor in longer)
        text = [f"The mean over inputs of {lengths} symbols. A guess reaches: {chances}."]
        sections += [
            Section(
                f"Tasks: {words} beyond the training length",
                text if metric == "accuracy" else ["Fraction of outputs without any error."],
                header,
                rows(lambda t, s, m=metric: table.beyond(t, s, plan.multiples, m)),
            )
            for metric, words in (("accuracy", "accuracy"), ("exact_match", "exact matches"))
        ]
    caption = "Fraction of correct output tokens against the length of the input, for each task."
    figure = _task_figure(plan, table, tasks)
    sections.append(Section("Tasks: curves", picture=figure, caption=caption, name="tasks"))
    return sections


def _task_figure(plan: Extrapolation, table: Table, tasks: Sequence[str]) -> Any:
    columns = min(3, len(tasks))
    count = -(-len(tasks) // columns)
    title = "Accuracy by length\ndotted: the longest input in training; dashed: a guess"
    size = 3.0 * columns + 2.2, 2.9 * count + 0.4
    figure, grid = canvas(title, size, count, columns)
    lengths = [factor * plan.task_length for factor in plan.multiples]
    for axes, task in zip(grid.flat, tasks, strict=False):
        lines = draw(axes, _curves(plan, table, task, "accuracy", plan.task_length), marker="o")
        lengths_axis(axes, lengths, plan.task_length)
        axes.axhline(RULES[task].chance, color="#888888", linewidth=0.8, linestyle="--")
        axes.set_ylim(-0.03, 1.03)
        title = task.replace("_", " ")
        frame(axes, title, "symbols of the input", "accuracy of output tokens")
    for axes in list(grid.flat)[len(tasks) :]:
        axes.set_visible(False)
    figure.legend(handles=lines, loc="outside right center", frameon=False, fontsize=9)
    return figure


def _curves(plan: Extrapolation, table: Table, task: str, metric: str, length: int) -> list[Curve]:
    found = []
    for scheme in plan.chosen_schemes:
        columns = {f: table.values(task, scheme, f, metric) for f in plan.multiples}
        known = [factor for factor in plan.multiples if columns[factor]]
        values = np.array([columns[factor] for factor in known]).T
        if known:
            limited = f" (to {max(known) * length})" if len(known) < len(columns) else ""
            colour = COLOURS[_MODELS.index(_SOURCE[scheme]) % len(COLOURS)]
            x = [factor * length for factor in known]
            name = f"{SCHEMES[scheme].title}{limited}"
            found.append(Curve(name, x, values, colour, _DASHES.get(scheme, "-")))
    return found


def _orders(plan: Extrapolation, table: Table, first: int | None = None) -> list[str]:
    """Describes the ranking of the schemes at each longer length."""
    found = []
    for factor in plan.multiples[1:]:
        if order := table.order(plan.chosen_schemes, factor, first):
            names = ", ".join(SCHEMES[scheme].title for scheme in order)
            found.append(f"At {factor * plan.text_length:,} tokens, from the best: {names}.")
    return found


def _figure_1(plan: Extrapolation, table: Table) -> str:
    """Compares the ranking with that in ALiBi's paper."""
    names = ", ".join(SCHEMES[scheme].title for scheme in FIGURE_1)
    first, *longer = plan.multiples
    same = [f for f in longer if table.order(FIGURE_1, f, first) == list(FIGURE_1)]
    lengths = ", ".join(f"{factor * plan.text_length:,}" for factor in same)
    where = f"{lengths} tokens" if same else "no length"
    return (
        "In figure 1 of the ALiBi paper the models start together and then part, in the order "
        f"{names}. By their growth, it is the order here at {where}."
    )


def _cell(value: Spread | None, digits: int | None = None) -> str:
    if value is None:
        return "–"
    if digits is None:
        digits = 2 if value.mean < 10 else 1 if value.mean < 1000 else 0
    return value.as_text(digits)


def _plain_numbers(axes: Any) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

    low, high = axes.get_ylim()
    narrow = high < 5 * low
    axes.yaxis.set_major_locator(MaxNLocator(6) if narrow else LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
