"""The model card of a run: the README.md on the Hugging Face hub."""

import json
from pathlib import Path

from jaxformer import __version__
from jaxformer.checkpoints.run_dir import IMPORTED, kept_files
from jaxformer.hub.remote.names import read_source
from jaxformer.io.model_files import LICENSE, file_in, is_hf_checkpoint
from jaxformer.io.paths import AnyPath, folder_path
from jaxformer.io.serialization import summary
from jaxformer.pretrained.checkpoint import RunCheckpoint
from jaxformer.pretrained.model import Pretrained

CARD = "README.md"


def model_card(
    run: str | Path, pretrained: Pretrained, *, step: int | None = None, best: bool = False
) -> str | None:
    """Returns the README.md for a checkpoint of a run, or None if it was not trained here.

    `pretrained` is the model that `load` read from the folder of the run or of a checkpoint.
    """
    folder = folder_path(run, "RUN_DIR")
    if is_hf_checkpoint(folder):
        return None
    opened = RunCheckpoint(folder, step, best)
    metrics = opened.saved.validation
    opened.close()
    if not opened.step:  # imported, and not trained since
        return None
    config, kept = opened.config, kept_files(opened.run) / IMPORTED
    head, origin = _head(kept, config.init_from)
    rows = {
        "Class": pretrained.checkpoint.architecture.name,
        "Parameters": f"{sum(x.size for x in pretrained.parameters.values()):,}",
        "Started from": origin,
        "Data": f"`{summary(config.data)}`",
        "Optimizer": f"`{summary(config.optimizer)}`",
        "Steps": f"{opened.step:,} of {config.train.steps:,}",
    }
    shown = {name.replace("_", " "): f"{value:.4g}" for name, value in metrics.items()}
    return "\n".join([
        *head,
        f"# {opened.run.name}",
        "",
        f"Trained with jaxformer {__version__}.",
        "",
        *_table("Training", rows),
        *(_table(f"Validation at step {opened.step:,}", shown) if shown else ()),
        *_usage(pretrained, opened.step),
    ])  # fmt: skip


def _head(kept: Path, init_from: str | None) -> tuple[list[str], str]:
    """Returns the card's metadata for the hub, and the name of the run's original model."""
    source = read_source(kept)
    origin = "random weights"
    lines = ["---", "library_name: transformers", "tags:", "- jaxformer"]
    if source is not None:
        origin = f"[{source.repo}](https://huggingface.co/{source.repo})"
        lines.append(f"base_model: {json.dumps(source.repo)}")
    elif init_from is not None:
        origin = f"`{Path(init_from).name}`"
    if file_in(kept, LICENSE) is not None:
        lines += ["license: other", "license_name: that-of-the-base-model", "license_link: LICENSE"]
    return [*lines, "---", ""], origin


def _table(title: str, rows: dict[str, str]) -> list[str]:
    lines = [f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows.items()]
    return [f"## {title}", "", "| | |", "| --- | --- |", *lines, ""]


def _usage(pretrained: Pretrained, step: int) -> list[str]:
    name = pretrained.checkpoint.architecture.name
    return [
        "## Use",
        "",
        "```python",
        f"from transformers import AutoTokenizer, {name}",
        "",
        f'model = {name}.from_pretrained("FOLDER")',
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
        "```",
        "",
        f"This folder was written by `jaxformer export RUN OUT --step {step}`, and "
        "`jaxformer verify OUT` compares it with transformers.",
        "",
    ]


def write_card(folder: AnyPath, card: str | None) -> None:
    """Writes README.md, unless the card is None."""
    if card is not None:
        (folder / CARD).write_text(card, encoding="utf-8")
