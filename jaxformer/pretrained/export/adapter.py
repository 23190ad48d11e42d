"""Writes the low-rank factors of a run as a PEFT adapter."""

from pathlib import Path

from jaxformer.config.experiment import Config
from jaxformer.errors import ConfigError
from jaxformer.hub.peft.config import PeftConfig, task_of
from jaxformer.hub.peft.files import Adapter, Factors, write_adapter
from jaxformer.hub.remote.names import hub_name
from jaxformer.io.files import check_unused, write_whole
from jaxformer.io.model_files import is_adapter, is_hf_checkpoint
from jaxformer.io.paths import is_remote
from jaxformer.models.lora import FACTORS, abstract_model_of, is_factor
from jaxformer.optim.parameter_roles import trained_names
from jaxformer.pretrained.auto import model_folder
from jaxformer.pretrained.checkpoint import RunCheckpoint
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import copy_other_files


def export_adapter(
    run_dir: Path, folder: Path, step: int | None = None, best: bool = False
) -> PeftConfig:
    """Writes the low-rank factors of a run, and its other trained parameters, as a PEFT adapter."""
    check_unused(folder)
    opened = RunCheckpoint(run_dir, step, best)
    run, train = opened.saved, opened.config.train
    if train.lora is None:
        raise ConfigError(
            f"export {run.folder} --adapter: the run trained no low-rank factors (train.lora): "
            "export it without --adapter"
        )
    structure = abstract_model_of(run.model, train.lora)
    lora = train.lora
    names = [name for name in trained_names(structure, train.frozen) if not is_factor(name)]
    found, whole = run.read_factors(), run.read(names)
    factors = {
        name: Factors(*(found[name + suffix] for suffix in FACTORS), lora.scale)
        for name in structure.targets
        if name not in whole  # A fully trained kernel contains its factors.
    }
    model = Pretrained(run.model, {}, opened.describe)
    config = PeftConfig(
        rank=lora.rank,
        alpha=lora.alpha,
        use_rslora=lora.use_rslora,
        dropout=lora.dropout,
        base=_base_name(run.config),
        task=task_of(model.checkpoint.architecture.name),
    )
    written: list[PeftConfig] = []

    def write(aside: Path) -> None:
        adapter = Adapter(factors, whole)
        written.append(write_adapter(aside, adapter, model.placements, config))
        copy_other_files(aside, opened.home)

    size = sum(array.nbytes for array in (*found.values(), *whole.values()))
    write_whole(folder, size, write)
    return written[0]


def _base_name(config: Config) -> str | None:
    """Returns the name of the base for PEFT, or None if it is not a Hugging Face checkpoint."""
    # If the base is an adapter, another run or some layers of a checkpoint, it is not saved
    # anywhere.
    if config.init_from is None or config.init_layers is not None:
        return None
    folder = Path(config.init_from)
    name = hub_name(config.init_from)
    if is_remote(config.init_from):
        copy = model_folder(config.init_from, "init_from", weights=False)
        return config.init_from if is_hf_checkpoint(copy) and not is_adapter(copy) else None
    if name is not None and not folder.exists():
        try:
            is_base = not is_adapter(model_folder(config.init_from, "init_from", weights=False))
        except ConfigError:  # the hub cannot be reached
            is_base = True
        return name.repo if is_base else None
    if is_adapter(folder):
        return None
    return str(folder.absolute()) if is_hf_checkpoint(folder) else None
