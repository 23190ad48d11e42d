"""The table of parity: every class of every known system, run here and in transformers."""

import datetime
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.weights.tensors import SINGLE
from jaxformer.parity.compare import (
    FLOOR,
    TIMES,
    Errors,
    beyond_rounding,
    differences,
    errors,
    gradient_differences,
    gradient_errors,
    likeliest_agree,
    real_parts,
    scores_name,
)
from jaxformer.parity.examples import PADDINGS, example_inputs
from jaxformer.parity.reference import Reference, save_random
from jaxformer.parity.verify import versions
from jaxformer.pretrained import model as pretrained
from jaxformer.pretrained.auto import load
from jaxformer.zoo import FORMATS

_COLUMNS = (
    "system", "class", "import", "export", "float32", "gradient", "bfloat16", "likeliest token",
)  # fmt: skip
_ALL, _WITHOUT, _IDENTICAL = "yes", "without ", "identical"
_LEFT_OUT = (
    "## What is where, and what is not here",
    "",
    "- ByT5 and the flan models are of `model_type` t5, Pythia is gpt_neox.",
    "- The whole `clip` and `siglip` checkpoints, and image classifiers of them: two models in",
    "  one folder, where `load` gives one. Transformers takes a tower out:",
    "  `CLIPVisionModelWithProjection.from_pretrained(DIR).save_pretrained(TOWER)`.",
    "- Classes for multiple choice, two heads of GPT-2 at once, masked images: no such head yet.",
    "- Mixtures of experts, and speech.",
)


@dataclass(frozen=True)
class ParityRow:
    """What was measured of one class; differences are relative to the largest value."""

    system: str
    architecture: str
    outputs: float
    """Of all outputs and of the hidden states of every layer, float32."""
    missing: tuple[str, ...]
    """Outputs that transformers gives and we do not."""
    exported: bool
    """The tensors come back bit for bit, and transformers loads them without a complaint and
    computes the same."""
    gradient: float | None
    """Of the parameters' gradients, float32; None where the class has no loss, or is not the first
    of its system."""
    bfloat16: float | None
    """Of the scores in bfloat16 beside transformers' in float32; None likewise."""
    agreement: float | None
    """The share of places whose likeliest token or label is the same, float32."""
    wrong: dict[str, Errors] = field(default_factory=dict)
    """Outputs and gradients whose difference rounding does not explain; there shall be none."""

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        return (
            self.system,
            self.architecture,
            _WITHOUT + ", ".join(self.missing) if self.missing else _ALL,
            _IDENTICAL if self.exported else "differs",
            f"{self.outputs:.1e}",
            _shown(self.gradient),
            _shown(self.bfloat16),
            "" if self.agreement is None else f"{self.agreement:.0%}",
        )


def measure(model_format: ModelFormat, architecture: Architecture, folder: Path) -> ParityRow:
    """Makes a small random model in transformers, reads it here and compares the two.

    Args:
        model_format: The system.
        architecture: One of its classes. The first is compared with padding on either side and
            without any, and its gradients are; of the others, which differ in their heads, only
            the outputs with padding on the left.
        folder: Where the model is saved, and exported to.
    """
    first = architecture == model_format.architectures[0]
    home = folder / "transformers"
    save_random(model_format.model_type, architecture.name, home)
    ours, theirs = load(home), Reference(home, architecture.name)
    found, wrong, missing, agreement = [0.0], {}, set(), None
    for padding in PADDINGS if first else ("left",):
        inputs = example_inputs(ours.checkpoint, padding)
        expected, exact = theirs.outputs(inputs), theirs.exact.outputs(inputs)
        actual = pretrained.forward(ours, inputs, output_hidden_states=True)
        found += differences(actual, expected, inputs).values()
        wrong |= beyond_rounding(errors(actual, expected, exact, inputs))
        missing |= set(expected) - set(actual)
        agreement = _agreement(actual, expected, inputs)
    has_loss, gradient = first and "loss" in expected, None
    if has_loss:
        actual, wanted = pretrained.gradients(ours, inputs), theirs.gradients(inputs)
        gradient = max(gradient_differences(actual, wanted).values())
        wrong |= beyond_rounding(gradient_errors(actual, wanted, theirs.exact.gradients(inputs)))
    return ParityRow(
        system=model_format.model_type,
        architecture=architecture.name,
        outputs=max(found),
        missing=tuple(sorted(missing)),
        exported=_exports(ours, folder, theirs, inputs),
        gradient=gradient,
        bfloat16=_bfloat16_difference(home, inputs, expected) if has_loss else None,
        agreement=agreement,
        wrong=wrong,
    )


def parity_page(rows: Iterable[ParityRow]) -> str:
    """docs/parity.md."""
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Parity with transformers",
        "",
        "Made by `python -m jaxformer parity`, which makes a small random model of each class in",
        "transformers, reads it here, and runs both on the same inputs. Differences are relative",
        "to the largest value of an output or gradient; the largest over all outputs, the hidden",
        "states of every layer and all paddings is shown. They are rounding alone: ours is no",
        f"further from the same computation in float64 than {TIMES:.0f} times the largest error of",
        f"transformers in float32, plus {FLOOR:.0e}. `export` says whether the tensors come back",
        "bit for bit and transformers loads them without a complaint.",
        "",
        f"{used}, {datetime.datetime.now(datetime.UTC).date().isoformat()}, on a CPU.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{' --- |' * len(_COLUMNS)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
        *_LEFT_OUT,
    ]
    return "\n".join(lines) + "\n"


def parse_page(text: str) -> dict[tuple[str, str], ParityRow]:
    """The rows of a docs/parity.md by system and class."""
    rows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == len(_COLUMNS) and cells[0] in FORMATS:
            system, name, missing, exported, *numbers, agreement = cells
            outputs, gradient, bfloat16 = (float(x) if x else None for x in numbers)
            rows[system, name] = ParityRow(
                system=system,
                architecture=name,
                outputs=outputs,
                missing=tuple(missing.removeprefix(_WITHOUT).split(", ")) * (missing != _ALL),
                exported=exported == _IDENTICAL,
                gradient=gradient,
                bfloat16=bfloat16,
                agreement=float(agreement.rstrip("%")) / 100 if agreement else None,
            )
    return rows


def measure_all(progress=lambda row: None) -> list[ParityRow]:
    """The rows of all classes of all systems; each is shown to `progress` when it is there."""
    rows = []
    for model_format in FORMATS.values():
        for architecture in model_format.architectures:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(measure(model_format, architecture, Path(scratch)))
            progress(rows[-1])
            jax.clear_caches()
    return rows


def _exports(ours, folder: Path, theirs: Reference, inputs) -> bool:
    pretrained.save(ours, folder / "export")
    before = load_file(folder / "transformers" / SINGLE)
    after = load_file(folder / "export" / SINGLE)
    again = Reference(folder / "export", ours.checkpoint.architecture.name).outputs(inputs)
    return (
        before.keys() == after.keys()
        and all(np.array_equal(before[name], after[name]) for name in before)
        and all(np.array_equal(x, again[name]) for name, x in theirs.outputs(inputs).items())
    )


def _bfloat16_difference(folder: Path, inputs, expected) -> float:
    low = pretrained.forward(load(folder, dtype="bfloat16"), inputs)
    name = scores_name(expected)
    return max(differences({name: low[name]}, {name: expected[name]}, inputs).values())


def _agreement(actual, expected, inputs) -> float | None:
    name = scores_name(expected)
    if name is None:
        return None
    return likeliest_agree(*real_parts(name, actual[name], expected[name], inputs))


def _shown(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.1e}"
