"""The model that a run starts from or learns from: its parameters, its tokenizer, its files."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from jaxformer.checkpoints.files import saved_steps
from jaxformer.checkpoints.run_data import kept_files
from jaxformer.checkpoints.run_dir import CHECKPOINTS, CONFIG_FILE, IMPORTED, read_config
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.checkpoints.select import run_and_step
from jaxformer.config.experiment import Config
from jaxformer.data import Tokenizer, TokenizerFile, TrainTokenizer, load_tokenizer
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.hf_config import CONFIG, is_hf_checkpoint
from jaxformer.hub.peft.files import is_adapter
from jaxformer.hub.remote.names import hub_name, source_of
from jaxformer.hub.weights.opening import Layout, layout_of
from jaxformer.hub.weights.parts import part_of, tensors_in
from jaxformer.hub.weights.weight_file import WeightFile, named_placements
from jaxformer.io.model_files import file_in
from jaxformer.io.paths import AnyPath, is_remote
from jaxformer.io.staging import name_of
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel
from jaxformer.pretrained.adapters import base_of
from jaxformer.pretrained.auto import describe_run, home_of, kept_layout
from jaxformer.pretrained.folders import model_folder
from jaxformer.pretrained.reader import open_folder
from jaxformer.pretrained.writing import keep_beside
from jaxformer.zoo.folders import image_class, read_folder


class SavedFolder:
    """The parameters of a Hugging Face checkpoint, with the interface of `SavedRun`.

    Args:
        folder: With config.json and safetensors or msgpack files.
        asked_by: What named the folder, for messages: "--init-from".
        may_lack_parts: Whether heads and a pooler may be missing.
        adapter: The folder of an adapter of PEFT to merge; None: there is none.
        architecture: The class; None: the one that config.json names.

    Raises:
        ConfigError: The system or one of its settings is not known, or its tensors do not fit.
    """

    adapted: frozenset[str] = frozenset()
    step = 0

    def __init__(
        self,
        folder: Path,
        asked_by: str,
        may_lack_parts: bool = False,
        adapter: Path | None = None,
        architecture: str | None = None,
    ):
        try:
            self._opened = open_folder(folder, may_lack_parts, architecture, adapter)
        except (ConfigError, DataError) as error:
            raise ConfigError(f"{asked_by}: {error}") from error
        self.folder = folder
        self.checkpoint = self._opened.checkpoint
        """The description of the model."""
        self.model = self.checkpoint.config
        missing = self._opened.file.missing_parts
        self.shapes = {
            name: x.shape
            for name, x in self._opened.abstract_model.shapes.items()
            if part_of(name) not in missing
        }
        """The shape of each parameter that is there, by its name."""
        self._besides: WeightFile | None = None

    def add_parts(self, model: ModelConfig) -> None:
        """Adds the heads and the pooler of another class that the file has besides its own.

        A file of pre-training has a pooler for classifiers, whatever class its config.json names.

        Args:
            model: The model that is to start from this one.
        """
        if type(model) is not type(self.model):
            return
        abstract_model, model_format = AbstractModel(model.build), self.checkpoint.model_format
        here, there = (
            {part_of(name) for name in names} for names in (abstract_model.shapes, self.shapes)
        )
        try:
            placements = named_placements(model_format, model, abstract_model, model_format.prefix)
        except ConfigError:
            return  # files of this kind have no such parts (DINOv3)
        wanted = tensors_in(placements, here - there)
        self._besides = self._opened.file.other_parts(model_format, wanted)
        if self._besides is not None:
            found = self._besides.parameters
            self.shapes |= {name: abstract_model.shapes[name].shape for name in found}

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into the host's memory."""
        besides = () if self._besides is None else self._besides.parameters
        return {
            name: self._besides.read(name, self.shapes[name])
            if name in besides
            else self._opened.read(name)
            for name in names
        }


class SavedAdapter(SavedFolder):
    """The parameters of a Hugging Face checkpoint with a PEFT adapter merged into them.

    Args:
        folder: The adapter's, which names its base.
        asked_by: What named the folder, for messages: "--init-from".
        may_lack_parts: Whether heads and a pooler of the base may be missing.

    Raises:
        ConfigError: The adapter is no LoRA, does not fit, or its base is not here.
    """

    def __init__(self, folder: Path, asked_by: str, may_lack_parts: bool = False):
        try:
            super().__init__(base_of(folder), asked_by, may_lack_parts, folder)
        except DataError as error:
            raise ConfigError(f"{asked_by}: {error}") from error
        self.adapted = self._opened.adapted


def open_saved(
    folder: str | Path, asked_by: str, may_lack_parts: bool = False, images_alone: bool = False
) -> SavedRun | SavedFolder:
    """Opens the parameters of a run, of one of its checkpoints, or of a Hugging Face checkpoint.

    Args:
        folder: RUN, RUN/checkpoints/300, one with config.json and safetensors, or a PEFT adapter; a
            string may be the name of a model on the hub.
        asked_by: The option that names the folder, for messages: "--init-from".
        may_lack_parts: Whether heads and a pooler may be missing from a checkpoint's files.
        images_alone: Whether a dual encoder is opened as the classifier of its images.

    Returns:
        The parameters, not read yet.

    Raises:
        ConfigError: It is none of these, or cannot be read.
    """
    if hub_name(folder) is None and not is_remote(folder):
        folder = Path(folder)
    else:
        folder = model_folder(folder, asked_by)
    if is_adapter(folder):
        return SavedAdapter(folder, asked_by, may_lack_parts)
    if is_hf_checkpoint(folder):
        architecture = image_class(folder) if images_alone else None
        return SavedFolder(folder, asked_by, may_lack_parts, architecture=architecture)
    return SavedRun(folder, asked_by)


def model_of(folder: str | Path, asked_by: str) -> ModelConfig:
    """Returns the model whose parameters `open_saved` would open; they need not be here.

    Args:
        folder: As for `open_saved`.
        asked_by: The option that names the folder, for messages.

    Raises:
        ConfigError: It is no model, or cannot be read.
        DataError: A file of it is damaged.
    """
    home = model_folder(folder, asked_by, weights=False)
    if is_adapter(home):
        home = base_of(home)
    if is_hf_checkpoint(home):
        return read_folder(home).config
    return read_config(run_and_step(home)[0]).model


@dataclass(frozen=True)
class Origin:
    """A checkpoint that a run starts from, with what travels with it."""

    saved: SavedRun | SavedFolder
    """Its parameters."""
    checkpoint: HFCheckpoint
    """The description of its model."""
    home: Path
    """The folder with its tokenizer, its config.json and other files."""

    def layout(self) -> Layout | None:
        """Returns the layout of the weights that it came from; None if it keeps none."""
        if isinstance(self.saved, SavedFolder):
            return layout_of(self.home)
        return kept_layout(self.home)


def open_origin(name: str, images_alone: bool = False) -> Origin:
    """Opens the checkpoint that `init_from` names.

    Args:
        name: A folder, or a model's name on the hub.
        images_alone: Whether a dual encoder is opened as the classifier of its images.

    Returns:
        The checkpoint; its parameters are not read yet.

    Raises:
        ConfigError: There is no such checkpoint, or it cannot be read.
    """
    folder = origin_folder(name)
    saved = open_saved(folder, "--init-from", may_lack_parts=True, images_alone=images_alone)
    if isinstance(saved, SavedFolder):
        return Origin(saved, saved.checkpoint, saved.folder)
    return Origin(saved, describe_run(saved, saved.model), home_of(saved.folder))


def origin_folder(name: str) -> AnyPath:
    """Returns the folder that `init_from` names.

    Args:
        name: A folder, or a model's name on the hub: "google-bert/bert-base-cased".

    Returns:
        The folder; that of the cache for a name, or for a model in an object store.

    Raises:
        ConfigError: It is neither, or cannot be downloaded.
    """
    return model_folder(name, "init_from")


def with_commit(config: Config, folder: Path | None) -> Config:
    """The experiment with the commit of the model on the hub that it starts from.

    The run's config.json then names the very files that it started from, whatever is pushed later.
    A run that is continued keeps the commit that it began with.

    Args:
        config: The experiment.
        folder: The run's; None: it starts anew.

    Returns:
        The experiment, the same one if it starts from a folder or from nothing.

    Raises:
        ConfigError: There is no such model, or it cannot be downloaded.
    """
    name = hub_name(config.init_from)
    if name is None or name.is_commit or Path(config.init_from).expanduser().exists():
        return config
    run = _began(folder)
    began = None if run is None else hub_name(run.init_from)
    same = began is not None and began.is_commit and began.repo == name.repo
    if same and name.revision is None:
        return replace(config, init_from=str(began))
    try:
        found = source_of(origin_folder(config.init_from))
    except ConfigError:
        if same and saved_steps(folder / CHECKPOINTS):
            return replace(config, init_from=str(began))
        raise
    return replace(config, init_from=str(found))


def keep_origin(config: Config, folder: AnyPath, tokenizer: Tokenizer | None) -> None:
    """Keeps in a run's folder the files of the Hugging Face checkpoint that it starts from.

    Its export has them again: templates, special tokens, the generation config, label names.

    Args:
        config: The experiment.
        folder: The run's folder.
        tokenizer: The run's tokenizer, whose files are kept in place of the checkpoint's if it is
            another.

    Raises:
        ConfigError: The checkpoint cannot be read.
        DataError: A file cannot be copied.
    """
    begun = (folder / IMPORTED).exists() or saved_steps(folder / CHECKPOINTS)
    if config.init_from is None or begun:
        return
    origin = open_origin(config.init_from, config.data.images_alone)
    if file_in(origin.home, CONFIG) is None:
        return
    same = tokenizer is None or tokenizer_file(origin.home) is None
    same = same or load_tokenizer(origin.home).fingerprint() == tokenizer.fingerprint()
    own = None if same else tokenizer
    keep_beside(folder, origin.home, origin.checkpoint, origin.layout(), own)


def with_tokenizer_of_origin(config: Config, run: Path | None = None) -> Config:
    """The experiment with the tokenizer of the model that it starts from, unless it names one.

    Args:
        config: The experiment.
        run: The run's folder. If it began with the same commit of the hub, in a cache elsewhere,
            the path that it has stays.

    Returns:
        The experiment.
    """
    trains = isinstance(getattr(config.data, "tokenizer", None), TrainTokenizer)
    if config.init_from is None or not trains:
        return config
    folder = tokenizer_folder(origin_folder(config.init_from))
    if folder is None:
        return config
    tokenizer, began = TokenizerFile(name_of(folder)), _began(run)
    theirs = None if began is None else getattr(began.data, "tokenizer", None)
    if isinstance(theirs, TokenizerFile) and (source := source_of(folder)) is not None:
        tokenizer = theirs if source_of(Path(theirs.path)) == source else tokenizer
    return replace(config, data=replace(config.data, tokenizer=tokenizer))


def _began(run: Path | None) -> Config | None:
    """The experiment of a run's folder; None where there is no run yet."""
    return read_config(run) if run is not None and (run / CONFIG_FILE).exists() else None


def tokenizer_folder(origin: AnyPath) -> Path | None:
    """The folder with the tokenizer of a run, a checkpoint or a Hugging Face checkpoint, if any."""
    run = kept_files(run_and_step(origin)[0])
    places = (run / "tokenizer", run, *([base_of(run)] if is_adapter(run) else []))
    return next((place for place in places if tokenizer_file(place) is not None), None)


def check_same_tokenizer(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that a run has the very tokenizer that another model has.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run or a Hugging Face checkpoint.

    Raises:
        ConfigError: The tokenizers differ, or there is none; says how to take the other's.
    """
    folder = _existing(origin)
    if tokenizer.fingerprint() != load_tokenizer(folder).fingerprint():
        raise ConfigError(f"it has another tokenizer. {_remedy(folder)}")


def check_same_tokens(tokenizer: Tokenizer, origin: Path) -> None:
    """Checks that the tokens that two models' tokenizers share stand for the same text.

    A tokenizer may have additional tokens at the end.

    Args:
        tokenizer: This run's.
        origin: The other's folder: a run, one of its checkpoints, or a Hugging Face checkpoint.

    Raises:
        ConfigError: A token differs (says which), or there is no tokenizer; says how to take the
            other's.
    """
    folder = _existing(origin)
    pieces = zip(tokenizer.pieces(), load_tokenizer(folder).pieces(), strict=False)
    for number, (ours, theirs) in enumerate(pieces):
        if ours != theirs:
            raise ConfigError(
                f"--init-from {origin}: its tokenizer is another: token {number} is {theirs!r} "
                f"there and {ours!r} here, so its embeddings stand for other tokens. "
                f"{_remedy(folder)}"
            )


def check_tokenizer_of(config: Config, origin: Path) -> None:
    """Checks, as `check_same_tokens`, the tokenizer that an experiment names.

    Args:
        config: The experiment, with the tokenizer of its origin unless it names another one.
        origin: The folder of the model that it starts from.

    Raises:
        ConfigError: As `check_same_tokens`.
    """
    spec = getattr(config.data, "tokenizer", None)
    if spec is None or spec == TokenizerFile(name_of(_existing(origin))):
        return
    check_same_tokens(spec.fit(()), origin)


def _existing(origin: Path) -> Path:
    folder = tokenizer_folder(origin)
    if folder is None:
        raise ConfigError(
            f"{origin} has no tokenizer, so nothing says what its tokens are: write one there "
            "with transformers, AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)"
        )
    return folder


def _remedy(folder: Path) -> str:
    named = f"--data.tokenizer TokenizerFile --data.tokenizer.path {name_of(folder)}"
    return f"Take its tokenizer: {named}"
