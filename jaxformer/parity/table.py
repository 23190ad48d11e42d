"""The parity table: compares every class of every known system with transformers."""

import datetime
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import numpy as np
from safetensors.numpy import load_file

from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.weights.names import current_name
from jaxformer.hub.weights.tensors import SINGLE
from jaxformer.io.console import markdown_table
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
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.outputs import forward, gradients
from jaxformer.pretrained.writing import save
from jaxformer.zoo import FORMATS

_COLUMNS = (
    "system", "class", "import", "export", "float32", "gradient", "bfloat16", "likeliest token",
)  # fmt: skip
_ALL = "yes"
_WITHOUT = "without "
_IDENTICAL = "identical"
_LEFT_OUT = (
    "## Notes and limitations",
    "",
    "- ByT5 and the Flan models have the `model_type` t5, and Pythia has gpt_neox.",
    "- A folder of `clip`, `siglip` or `siglip2` with both towers loads as a whole. Transformers",
    "  extracts one: `CLIPVisionModelWithProjection.from_pretrained(DIR).save_pretrained(TOWER)`.",
    "- Of `gemma3`, `qwen2_vl`, `qwen2_5_vl` and `qwen3_vl` only the text model is read, also from",
    "  separate files (`qwen2_5_vl_text`), and written as `gemma3_text`, `qwen2` or `qwen3`. It",
    "  computes the same outputs for texts; images are not supported.",
    "- Without a mask, T5Gemma masks tokens with the padding id, as in transformers. A token whose",
    "  window contains only padding gets the mean of all tokens in transformers, and zeros here.",
    "- A decoder with `is_causal = false` in its config attends in both directions, as in",
    "  transformers, and does not generate. It is refused if transformers ignores this in a layer.",
    "- A backbone of DINOv2 or DINOv3 (`DINOv3ViTBackbone`) loads as the model that it contains,",
    "  with `--architecture DINOv3ViTModel`.",
    "- A Nomic BERT that transformers saved with `save_original_format=False` is refused: its",
    "  tensor names differ from those of published files.",
    "- GPT-2's double heads are not supported.",
    "- In transformers, `generate()` counts the positions of causal RoBERTa models from 0, but the",
    "  forward pass counts them from the padding id + 1. Here both count as the forward pass.",
    "- An MPT with an `alibi_bias_max` other than 8 is computed as by the code published with it;",
    "  transformers always uses 8.",
    "- DeBERTa's original files do not describe their head over the vocabulary, which is read",
    "  here; transformers reads it if config.json has `legacy: false`.",
    "- In a separate decoder of BART, a related model or Whisper (`BartForCausalLM`), transformers",
    "  counts padding on the left as positions. `generate` gives the text of each row without it.",
    "  The cross-attention is kept but not run, since encoder states are not inputs.",
    "- BEiT's segmentation class is not supported. In transformers, bias tables for images that",
    "  are not square are read with rows and columns exchanged, and `BeitForMaskedImageModeling`",
    "  without `use_mean_pooling` swaps its two norms on loading.",
)


@dataclass(frozen=True)
class ParityRow:
    """The measurements of one class; differences are relative to the largest value."""

    system: str
    architecture: str
    outputs: float
    """The largest difference in any output or hidden state, in float32."""
    missing: tuple[str, ...]
    """Outputs that only transformers has."""
    exported: bool
    """Whether exported tensors are identical, load in transformers without a warning, and give the
    same outputs.
    """
    gradient: float | None
    """The largest difference of parameter gradients, in float32; None if the class has no loss or
    is not the first of its system.
    """
    bfloat16: float | None
    """The difference of the bfloat16 scores from the float32 reference; None if not measured."""
    agreement: float | None
    """The fraction of positions with the same most likely token or label, in float32."""
    wrong: dict[str, Errors] = field(default_factory=dict)
    """Outputs and gradients whose difference rounding does not explain; must be empty."""

    def cells(self) -> tuple[str, ...]:
        """Returns the cells of the row."""
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
    """Compares a small random model of transformers with the same model here."""
    first = architecture == model_format.architectures[0]
    home = folder / "transformers"
    save_random(model_format.model_type, architecture.name, home)
    ours = load(home)
    theirs = Reference(home, architecture.name)
    found = [0.0]
    wrong = {}
    missing = set()
    agreement = None
    for padding in PADDINGS if first else ("left",):
        inputs = example_inputs(ours.checkpoint, padding)
        expected = theirs.outputs(inputs)
        exact = theirs.exact.outputs(inputs)
        actual = forward(ours, inputs, output_hidden_states=True)
        found += differences(actual, expected, inputs).values()
        wrong |= beyond_rounding(errors(actual, expected, exact, inputs))
        missing |= set(expected) - set(actual)
        agreement = _agreement(actual, expected, inputs)
    has_loss, gradient = first and "loss" in expected, None
    if has_loss:
        actual = gradients(ours, inputs)
        wanted = theirs.gradients(inputs)
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
    """Returns the text of docs/parity.md."""
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    lines = [
        "# Parity with transformers",
        "",
        "`python -m jaxformer parity` writes this page. It makes a small random model of each",
        "class in transformers, loads it in jaxformer, and runs both on the same inputs.",
        "Differences are relative to the largest value of an output or gradient. The table has the",
        "largest one of all outputs, the hidden states of every layer, and all paddings. They are",
        "due to rounding: the error of jaxformer relative to the same computation in float64 is at",
        f"most {TIMES:.0f} times the largest error of transformers in float32, plus {FLOOR:.0e}.",
        "`export` says whether exported tensors are identical and transformers loads them without",
        "a warning.",
        "",
        f"{used}, {datetime.datetime.now(datetime.UTC).date().isoformat()}, on a CPU.",
        "",
        *markdown_table(_COLUMNS, [row.cells() for row in rows]),
        "",
        *_LEFT_OUT,
    ]
    return "\n".join(lines) + "\n"


def parse_page(text: str) -> dict[tuple[str, str], ParityRow]:
    """Returns the rows of a docs/parity.md by system and class."""
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
                missing=_parse_missing(missing),
                exported=exported == _IDENTICAL,
                gradient=gradient,
                bfloat16=bfloat16,
                agreement=float(agreement.rstrip("%")) / 100 if agreement else None,
            )
    return rows


def _parse_missing(cell: str) -> tuple[str, ...]:
    return () if cell == _ALL else tuple(cell.removeprefix(_WITHOUT).split(", "))


def measure_all(progress=lambda row: None) -> list[ParityRow]:
    """Measures the rows of all classes of all systems, and calls `progress` with each."""
    rows = []
    for model_format in FORMATS.values():
        for architecture in model_format.architectures:
            with tempfile.TemporaryDirectory() as scratch:
                rows.append(measure(model_format, architecture, Path(scratch)))
            progress(rows[-1])
            jax.clear_caches()
    return rows


def tensors_by_current_name(file: Path, model_format: ModelFormat) -> dict[str, np.ndarray]:
    """Returns the tensors of a file by the names that this library writes.

    transformers saves ESM's norms under legacy names ("LayerNorm.gamma") and its frequencies under
    a name that contains "*".
    """
    return {current_name(name, model_format): x for name, x in load_file(file).items()}


def _exports(ours, folder: Path, theirs: Reference, inputs) -> bool:
    save(ours, folder / "export")
    before, after = (
        tensors_by_current_name(folder / name / SINGLE, ours.checkpoint.model_format)
        for name in ("transformers", "export")
    )
    again = Reference(folder / "export", ours.checkpoint.architecture.name).outputs(inputs)
    return (
        before.keys() == after.keys()
        and all(np.array_equal(before[name], after[name]) for name in before)
        and all(np.array_equal(x, again[name]) for name, x in theirs.outputs(inputs).items())
    )


def _bfloat16_difference(folder: Path, inputs, expected) -> float:
    low = forward(load(folder, dtype="bfloat16"), inputs)
    name = scores_name(expected)
    return max(differences({name: low[name]}, {name: expected[name]}, inputs).values())


def _agreement(actual, expected, inputs) -> float | None:
    name = scores_name(expected)
    if name is None:
        return None
    return likeliest_agree(*real_parts(name, actual[name], expected[name], inputs))


def _shown(difference: float | None) -> str:
    return "" if difference is None else f"{difference:.1e}"
