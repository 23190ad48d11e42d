"""The commands that read and write folders of transformers'."""

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import check_unused, replacing
from jaxformer.io.npz_files import read_npz
from jaxformer.parity import table as parity
from jaxformer.parity import verify as verification
from jaxformer.pretrained import model as pretrained
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.model import DTYPES


def add_import(commands: Any) -> None:
    """Adds ``import HF_DIR RUN_DIR``."""
    parser = commands.add_parser(
        "import",
        help="a run made of a model that transformers saved",
        description="Reads config.json, safetensors and tokenizer of a folder that transformers "
        "saved, and writes a run that inspect, evaluate, export and --init-from take.",
    )
    parser.add_argument("hf_dir", type=Path, metavar="HF_DIR")
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--dtype", choices=DTYPES, help="cast the weights (default: as they are)")
    parser.set_defaults(run=import_)


def import_(options: argparse.Namespace) -> None:
    """Writes a run made of a folder."""
    model = import_folder(options.hf_dir, options.run_dir, options.dtype)
    count = sum(array.size for array in model.parameters.values())
    print(
        f"{options.run_dir}: {model.checkpoint.architecture.name} of {count:,} parameters\n"
        f"Next: python -m jaxformer forward {options.run_dir} --inputs in.npz --output out.npz, or "
        f"fine-tune it: python train.py CONFIG --init-from {options.run_dir}"
    )


def add_forward(commands: Any) -> None:
    """Adds ``forward DIR --inputs in.npz --output out.npz``."""
    parser = commands.add_parser(
        "forward",
        help="a model's outputs for arrays in a file",
        description="Runs a model on arrays named as in transformers (input_ids, attention_mask, "
        "token_type_ids, decoder_input_ids, pixel_values, labels, ...) and writes what it gives "
        "(last_hidden_state, logits, pooler_output, loss, ...).",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run or transformers' folder")
    parser.add_argument("--inputs", type=Path, required=True, metavar="IN.npz")
    parser.add_argument("--output", type=Path, required=True, metavar="OUT.npz")
    parser.add_argument("--hidden-states", action="store_true", help="add those of every layer")
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the weights")
    parser.set_defaults(run=forward)


def forward(options: argparse.Namespace) -> None:
    """Writes a model's outputs."""
    inputs = read_npz(options.inputs)
    model = load(options.folder, dtype=options.dtype)
    outputs = pretrained.forward(model, inputs, output_hidden_states=options.hidden_states)
    _write_arrays(options.output, outputs)
    for name, array in outputs.items():
        print(f"{name:24} {array.dtype} {list(array.shape)}")
    print(f"written to {options.output}")


def _write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    with replacing(path) as aside:
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.savez(file, **arrays)


def add_export(commands: Any) -> None:
    """Adds ``export RUN_DIR OUT_DIR``."""
    parser = commands.add_parser(
        "export",
        help="a folder that transformers' from_pretrained loads",
        description="Writes a run's newest weights, configuration and tokenizer as transformers "
        "keeps them.",
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    parser.add_argument("--dtype", choices=DTYPES, help="cast the weights (default: as they are)")
    parser.add_argument("--max-shard-gb", type=float, default=5.0, help="the largest file, in GB")
    parser.set_defaults(run=export)


def export(options: argparse.Namespace) -> None:
    """Writes a folder for transformers."""
    if not 0 < options.max_shard_gb < math.inf:
        raise ConfigError(f"--max-shard-gb {options.max_shard_gb}: must be positive and finite")
    check_unused(options.out_dir)
    model = load(options.run_dir, dtype=None)
    size = math.ceil(options.max_shard_gb * 1e9)
    pretrained.save(model, options.out_dir, dtype=options.dtype, max_shard_bytes=size)
    print(
        f"{options.out_dir}: {model.checkpoint.architecture.name}\n"
        f"Next: python -m jaxformer verify {options.out_dir}"
    )


def add_verify(commands: Any) -> None:
    """Adds ``verify OUT_DIR``."""
    parser = commands.add_parser(
        "verify",
        help="whether transformers computes the same from a folder; writes receipt.json",
        description="Runs transformers and jaxformer on the same inputs in float32 and writes how "
        "far they lie apart. Needs torch and transformers.",
    )
    parser.add_argument("out_dir", type=Path, metavar="OUT_DIR")
    parser.set_defaults(run=verify)


def verify(options: argparse.Namespace) -> None:
    """Writes and shows a receipt; fails where the two differ."""
    receipt = verification.verify(options.out_dir)
    table = Table(box=None, pad_edge=False)
    beside_float64 = ("jaxformer from float64", "transformers from float64")
    for title in ("padding", "output", "relative difference", *beside_float64):
        table.add_column(title)
    for padding, case in receipt["cases"].items():
        for name, difference in case["relative"].items():
            pair = case["from_float64"][name]
            numbers = (difference, pair["jaxformer"], pair["transformers"])
            table.add_row(padding, name, *(f"{number:.1e}" for number in numbers))
    Console().print(table)
    print(f"receipt: {options.out_dir / verification.RECEIPT}")
    wrong = [
        (case["from_float64"][name]["jaxformer"], name, padding, case["limit_of_rounding"])
        for padding, case in receipt["cases"].items()
        for name in case["beyond_rounding"]
    ]
    if wrong:
        error, name, padding, limit = max(wrong)
        raise DataError(
            f"{options.out_dir}: transformers computes something else: {name} with padding "
            f"{padding} is {error:.1e} from the same computation in float64, where rounding "
            f"explains {limit:.1e}"
        )
    print(f"{receipt['architecture']}: equal in transformers {receipt['versions']['transformers']}")


def add_parity(commands: Any) -> None:
    """Adds ``parity``."""
    parser = commands.add_parser(
        "parity",
        help="how every known system compares with transformers; writes docs/parity.md",
        description="Makes a small random model of every class of every system in transformers "
        "and compares: outputs, gradients, export. Needs torch and transformers; takes minutes.",
    )
    parser.add_argument("--output", type=Path, default=Path("docs/parity.md"))
    parser.set_defaults(run=write_parity)


def write_parity(options: argparse.Namespace) -> None:
    """Writes the table, showing each row when it is measured."""
    rows = parity.measure_all(lambda row: print("  ".join(row.cells()), flush=True))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(parity.parity_page(rows), encoding="utf-8")
    print(f"written to {options.output}")
    if wrong := [f"{row.architecture} ({', '.join(row.wrong)})" for row in rows if row.wrong]:
        raise DataError(f"transformers computes something else: {'; '.join(wrong)}")
