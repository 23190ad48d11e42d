"""``jaxformer evaluate RUN_DIR``: measures a run on validation data."""

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax

from jaxformer.checkpoints.run_dir import KEPT, kept_files, read_config
from jaxformer.checkpoints.saved_run import SavedRun, run_and_step
from jaxformer.cli.options import CheckpointChoice, split_subject
from jaxformer.config.experiment import Config, check_labels, validate
from jaxformer.config.overrides import parse
from jaxformer.data import Data, Datasets, load_tokenizer
from jaxformer.distributed.compiled import keep_compiled
from jaxformer.distributed.join import DistributedConfig, join, make_cpu_devices
from jaxformer.distributed.processes import is_first
from jaxformer.distributed.sharding import MeshConfig, make_mesh
from jaxformer.errors import ConfigError, DataError
from jaxformer.io.files import check_store
from jaxformer.io.paths import AnyPath, any_path, is_remote, run_path
from jaxformer.io.staging import staged
from jaxformer.training.evaluation.conclusion import EVALUATION_FILE, Conclusion, shown
from jaxformer.training.evaluation.evaluate import Evaluator
from jaxformer.training.logging.report import print_table
from jaxformer.training.preference_loss import preference_loss
from jaxformer.training.resolve import resolve_reference
from jaxformer.training.step import TrainProgram
from jaxformer.training.vocabulary import check_tokenizer


@dataclass(frozen=True)
class Evaluation(CheckpointChoice):
    """Evaluates a checkpoint of a run on its validation rows or on other data."""

    data: Data
    """The run's data; --data.validation... names other validation data."""
    mesh: MeshConfig
    """How computation is distributed over devices."""
    output: Path | None = None
    """The JSON file to write (default: RUN_DIR/evaluation.json); generated texts are written next
    to it.
    """
    job: DistributedConfig = field(default_factory=DistributedConfig)
    """The processes of the job."""


_DESCRIPTION = """\
Evaluates the newest checkpoint of a run on all its validation rows, shows the metrics and writes
them as JSON. The options for the data are the same as for `jaxformer train`: --data.validation
dev.tsv, --data.validation-source src.txt, --data.text sentence. `{prog} RUN_DIR --help` lists
them."""


def evaluate(arguments: Sequence[str], prog: str) -> None:
    """Prints and writes the metrics of a run."""
    usage = f"{prog} RUN_DIR [--step N | --best] [--output FILE.json] [--data.validation FILE ...]"
    subject, remaining = split_subject(arguments, "a run", usage, _DESCRIPTION.format(prog=prog))
    named = run_path(subject, "run_dir")
    folder, _ = run_and_step(named)
    run = read_config(folder)
    everything = replace(run.data, max_validation_batches=None)
    options = parse(Evaluation(everything, run.mesh), remaining, f"{prog} {folder}")
    output = _writable(any_path(options.output or folder / EVALUATION_FILE, "--output"))
    mesh = _start_mesh(options, run)
    saved = SavedRun(named, options.step, options.best)
    config = replace(saved.config, data=options.data, mesh=mesh)
    validate(config, jax.device_count())
    keep_compiled()
    with _linked_data(folder, run.data, config.data) as kept:
        data = _prepared(config.data, kept)
        check_tokenizer(config.model, data.tokenizer)
        check_labels(config.model.heads, data.labels)
        program = _program(config)
        if config.train.preference is not None:
            resolved = resolve_reference(config)
            data = resolved.with_references(folder, replace(data, train=None), program)
        params = saved.restore(program.abstract_model.shapes, program.param_shardings)
        evaluator = Evaluator(program, data, config.data.max_validation_batches)
        saved.close()
        conclusion = evaluator.conclude(params, saved.step, say=_say)
    if set(conclusion.metrics) == {"loss"}:
        raise DataError(
            f"none of the {conclusion.rows} validation rows has a target, so no metric can be "
            "computed"
        )
    if is_first():
        _report(conclusion, folder, config, output)


def _writable(file: AnyPath) -> AnyPath:
    """Returns the file after checking that it can be written."""
    if file.suffix != ".json":
        raise ConfigError(f"--output {file}: the metrics are JSON; name a file that ends in .json")
    check_store(file.parent, "--output")
    if is_remote(file):
        return file
    if file.is_dir() or not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ConfigError(f"--output {file} cannot be written: name another file")
    return file


def _start_mesh(options: Evaluation, run: Config) -> MeshConfig:
    """Returns the requested mesh, or one device if the run's mesh does not fit this machine."""
    make_cpu_devices(options.mesh, join(options.job))
    try:
        options.mesh.sizes(jax.device_count())
    except ConfigError:
        if options.mesh != run.mesh:
            raise
        _say(f"on one device: the run's mesh is larger than the {jax.device_count()} here")
        return MeshConfig()
    return options.mesh


@contextlib.contextmanager
def _linked_data(folder: AnyPath, old: Data, new: Data) -> Iterator[Path]:
    """Yields a temporary folder with links to the run's prepared data.

    The run's tokens are only linked if the documents are the same.
    """
    if getattr(old, "tokenizer", None) != getattr(new, "tokenizer", None):
        raise ConfigError(
            "--data.tokenizer: must be left out, since the model needs the run's tokenizer"
        )
    home = kept_files(folder)
    if hasattr(old, "tokenizer") and not (home / "tokenizer").is_dir():
        raise ConfigError(f"{folder}/tokenizer is missing, so text cannot be tokenized")
    if hasattr(old, "tokenizer"):
        load_tokenizer(home)  # so that an error about damage names the file in the run
    links = {name: home / name for name in KEPT}
    documents = ("source", "validation_fraction", "split_seed")
    if all(getattr(old, name, None) == getattr(new, name, None) for name in documents):
        links |= {item.name: staged(item) for item in folder.glob("corpus-*")}
    with tempfile.TemporaryDirectory() as scratch:
        for name, item in links.items():
            if item.exists():
                Path(scratch, name).symlink_to(item.absolute())
        yield Path(scratch)


def _prepared(data: Data, kept: Path) -> Datasets:
    try:
        return data.prepare_validation(kept)
    except DataError as error:
        if _own_validation(data):
            raise
        raise DataError(
            f"{error}. The run's validation rows are a fraction of its training data: set the new "
            "location of that data, or other validation data; --help lists the options"
        ) from error


def _own_validation(data: Data) -> dict[str, Any]:
    """Returns the fields that name separate validation data, with their values."""
    names = [item.name for item in dataclasses.fields(data) if item.name.startswith("validation")]
    values = {name: getattr(data, name) for name in names if name != "validation_fraction"}
    return {name: value for name, value in values.items() if value is not None}


def _program(config: Config) -> TrainProgram:
    """Returns the program for evaluation, without a teacher."""
    preference = config.train.preference
    mesh = make_mesh(config.mesh)
    loss = None if preference is None else preference_loss(preference)
    return TrainProgram(config.model, config.optimizer, config.train, mesh, loss)


def _say(text: str) -> None:
    if is_first():
        print(text, flush=True)


def _report(conclusion: Conclusion, folder: Path, config: Config, output: Path) -> None:
    averaged = "" if config.train.ema_decay is None else " (averaged parameters)"
    own = ", ".join(map(str, _own_validation(config.data).values()))
    share = config.data.validation_fraction
    held_out = f"{'some' if share is None else f'{share:.3g}'} of the rows, held out of training"
    if conclusion.texts:
        print(f"\n{shown(conclusion.texts, config.data.product[0])}\n")
    rows = [
        ("step", f"{conclusion.step}{averaged}"),
        ("validation data", own or held_out),
        ("rows", f"{conclusion.rows:,}"),
    ]
    rows += [(k.replace("_", " "), f"{v:.5g}") for k, v in conclusion.metrics.items()]
    print_table(str(folder), rows)
    for file in conclusion.save(output, folder, config.data):
        print(f"written to {file}")
