"""``jaxformer import``, ``forward``, ``export`` and ``push``: Hugging Face checkpoints."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro

from jaxformer.checkpoints.saved_run import chosen_step, run_and_step
from jaxformer.cli.options import (
    CheckpointChoice,
    ClassChoice,
    Dtype,
    HFDir,
    ModelChoice,
    OutDir,
    RunDir,
)
from jaxformer.engines.export import CUSTOM_CODE, ENGINE_FORMATS, export_model
from jaxformer.errors import ConfigError
from jaxformer.io.files import check_unused, replacing
from jaxformer.io.model_files import is_hf_checkpoint
from jaxformer.io.npz_files import read_npz
from jaxformer.io.paths import any_path
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.export.adapter import export_adapter
from jaxformer.pretrained.export.model_card import model_card
from jaxformer.pretrained.export.push import push as push_folder
from jaxformer.pretrained.import_run import import_folder
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.outputs import forward as outputs_of
from jaxformer.pretrained.writing import save


@dataclass(frozen=True)
class Import(ClassChoice):
    """Imports a Hugging Face checkpoint as a run.

    Reads its config.json, weights (safetensors or flax_model.msgpack) and tokenizer, and writes a
    run for inspect, evaluate, export and --init-from.
    """

    hf_dir: HFDir
    """The folder of the checkpoint, or its name on the hub: org/name, or org/name@revision."""
    run_dir: RunDir
    """A new or empty folder."""
    dtype: Dtype | None = None
    """Cast the weights to this dtype (None: keep the checkpoint's dtype)."""
    strict: bool = False
    """Refuse a config.json with fields that transformers does not know."""


def import_checkpoint(options: Import) -> None:
    """Writes a run made from a checkpoint."""
    model = import_folder(
        options.hf_dir, options.run_dir, options.dtype, options.strict, options.architecture
    )
    count = sum(array.size for array in model.parameters.values())
    run = any_path(options.run_dir, "RUN_DIR")
    print(
        f"{run}: {model.checkpoint.architecture.name} of {count:,} parameters\n"
        f"Next: jaxformer forward {run} --inputs in.npz --output out.npz, or "
        f"fine-tune it: jaxformer train CONFIG --init-from {run}"
    )


@dataclass(frozen=True, kw_only=True)
class Forward(ModelChoice):
    """Computes a model's outputs for input arrays in a file.

    The inputs are named as in transformers (input_ids, attention_mask, token_type_ids,
    decoder_input_ids, pixel_values, labels, ...), and so are the outputs (last_hidden_state,
    logits, pooler_output, loss, ...).
    """

    inputs: Path
    """The .npz file with the inputs."""
    output: Path
    """The .npz file to write."""
    hidden_states: bool = False
    """Add the hidden states of every layer."""
    dtype: Dtype = "float32"
    """The dtype of the weights."""


def forward(options: Forward) -> None:
    """Writes a model's outputs."""
    inputs = read_npz(options.inputs)
    model = load(options.folder, dtype=options.dtype, **options.how)
    outputs = outputs_of(model, inputs, output_hidden_states=options.hidden_states)
    with replacing(options.output) as aside:
        aside.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as file:
            np.savez(file, **outputs)
    for name, array in outputs.items():
        print(f"{name:24} {array.dtype} {list(array.shape)}")
    print(f"written to {any_path(options.output, '--output')}")


@dataclass(frozen=True)
class Export(CheckpointChoice, ClassChoice):
    """Exports a run as a Hugging Face checkpoint for from_pretrained, or for another engine.

    Writes the weights of a checkpoint of the run, its config and its tokenizer. `jaxformer verify`
    then runs the export and compares it with jaxformer.
    """

    run_dir: RunDir
    """The run's folder."""
    out_dir: OutDir
    """A new or empty folder."""
    dtype: Dtype | None = None
    """Cast the weights to this dtype (None: keep the dtype of the checkpoint that the run started
    from, or of the run).
    """
    max_shard_gb: float | None = None
    """The maximum file size in GB (default: as in that checkpoint, or 5)."""
    format: Literal[
        "hf", "flax", "compressed-tensors", "ctranslate2", "gguf", "mlx", "onnx", "stablehlo"
    ] = "hf"
    """The weight format: hf is model.safetensors; flax is flax_model.msgpack for the Flax classes
    of transformers 4; compressed-tensors is hf with quantised kernels, for vLLM and SGLang;
    ctranslate2 is for CTranslate2, and for faster-whisper; gguf is for llama.cpp, Ollama and
    LM Studio; mlx is for MLX-LM; onnx is for ONNX Runtime; stablehlo is for JAX without jaxformer.
    """
    quantise: str | None = None
    """Store kernels as integers (compressed-tensors and mlx: int8 or int4; ctranslate2: int8 or
    int16; gguf: q8_0).
    """
    custom_code: bool = False
    """With --format hf: also write modeling_jaxformer.py, plain PyTorch for trust_remote_code, for
    models without a class in transformers.
    """
    adapter: bool = False
    """Write the low-rank factors of a run with --train.lora as a PEFT adapter, without base
    weights.
    """


def export(options: Export) -> None:
    """Writes a Hugging Face checkpoint."""
    size = options.max_shard_gb
    if size is not None and not 0 < size < math.inf:
        raise ConfigError(f"--max-shard-gb {size}: must be positive and finite")
    check_unused(options.out_dir)
    if options.custom_code and (options.format != "hf" or options.adapter):
        given = "--adapter" if options.adapter else f"--format {options.format}"
        raise ConfigError(f"--custom-code: must be left out with {given}, which has no code")
    if options.quantise is not None and options.format not in ENGINE_FORMATS:
        others = [each.name for each in ENGINE_FORMATS.values() if each.quantisations]
        raise ConfigError(
            f"--quantise {options.quantise}: must be left out with --format {options.format}; "
            f"{', '.join(others)} have quantised weights"
        )
    if options.adapter:
        print(_export_adapter(options))
        return
    which = {"step": options.step, "best": options.best, "architecture": options.architecture}
    model = load(options.run_dir, dtype=None, **which)
    out = any_path(options.out_dir, "OUT_DIR")
    format = CUSTOM_CODE.name if options.custom_code else options.format
    if options.custom_code or format in ENGINE_FORMATS:
        _export_for_engine(options, model, format)
        print(f"{out}: {format}, {model.checkpoint.architecture.name}")
        print(f"Next: jaxformer verify {out}")
        return
    most = None if size is None else math.ceil(size * 1e9)
    card = model_card(options.run_dir, model, step=options.step, best=options.best)
    save(
        model,
        options.out_dir,
        format=options.format,
        dtype=options.dtype,
        max_shard_bytes=most,
        model_card=card,
    )
    print(f"{out}: {model.checkpoint.architecture.name}\nNext: jaxformer verify {out}")


def _export_for_engine(options: Export, model: Pretrained, format: str) -> None:
    """Writes an export for an engine."""
    if options.max_shard_gb is not None:
        raise ConfigError(
            f"--max-shard-gb {options.max_shard_gb}: must be left out with {format}, "
            "whose files are not split"
        )
    home, step = any_path(options.run_dir, "RUN_DIR"), None
    if not is_hf_checkpoint(home):
        home, step = run_and_step(home, options.step, options.best)
        step = chosen_step(home, step, options.best)
    export_model(
        model,
        options.out_dir,
        format=format,
        source=str(home.absolute()),
        dtype=options.dtype,
        quantise=options.quantise,
        step=step,
    )


def _export_adapter(options: Export) -> str:
    """Writes the adapter; returns the text to print."""
    given = {"--dtype": options.dtype, "--max-shard-gb": options.max_shard_gb}
    given |= {"--format": None if options.format == "hf" else options.format}
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"{name} {value}: must not be given with --adapter, a float32 file")
    out = any_path(options.out_dir, "OUT_DIR")
    config = export_adapter(options.run_dir, out, options.step, options.best)
    adapted = (*config.targets, *config.parameters)
    saved = f", and {', '.join(config.saved)} whole" if config.saved else ""
    base = config.base or "that the run started from"
    return (
        f"{out}: PEFT adapter of rank {config.rank} for {', '.join(adapted)}{saved}\n"
        f'Next: PeftModel.from_pretrained(base, "{out}") with the base {base}'
    )


@dataclass(frozen=True)
class Push:
    """Pushes an exported checkpoint to the Hugging Face hub, with its tokenizer and templates.

    Requires a token with write access: HF_TOKEN, or the token of `hf auth login`.
    """

    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]
    """A folder written by `jaxformer export`."""
    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """org/name, which is created if it does not exist."""
    private: bool = False
    """Create the repository as private."""
    revision: str | None = None
    """The branch (default: main), which is created if it does not exist."""
    message: str = "Upload model"
    """The commit message."""


def push(options: Push) -> None:
    """Uploads a checkpoint and prints its address."""
    which = {"private": options.private, "revision": options.revision, "message": options.message}
    print(push_folder(options.folder, options.name, **which))
