"""Opens the predictor of a model, which depends on the model's head."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import jax.numpy as jnp

from jaxformer.checkpoints.run_dir import IMPORTED, RunConfig, kept_files
from jaxformer.checkpoints.saved_run import run_and_step
from jaxformer.checks import at_least, check_argument, check_arguments, check_types, optional
from jaxformer.config.experiment import Config
from jaxformer.data.base import Data
from jaxformer.data.labels import load_labels
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.sounds.features import form_of
from jaxformer.data.tasks.sounds.labelled import LabelledClips
from jaxformer.data.tokenizers.specs import load_tokenizer
from jaxformer.errors import ArgumentError, ConfigError
from jaxformer.io.model_files import is_hf_checkpoint
from jaxformer.models import Head
from jaxformer.models.heads.base import PredictionOptions, embedding, pool
from jaxformer.pretrained.auto import load, model_folder
from jaxformer.pretrained.model import Pretrained, with_stored_compute_dtype
from jaxformer.pretrained.prediction.answers import AnswerPredictor
from jaxformer.pretrained.prediction.hf_reader import HFReader
from jaxformer.pretrained.prediction.image_reader import HFImageReader, RunImageReader
from jaxformer.pretrained.prediction.predictor import Predictor, RowPredictor, Subject
from jaxformer.pretrained.prediction.reader import Reader
from jaxformer.pretrained.prediction.run_reader import RunReader
from jaxformer.pretrained.prediction.sound_reader import SoundReader
from jaxformer.pretrained.prediction.tags import TagPredictor

Pooling = Literal["mean", "first", "last"]


@dataclass(frozen=True, kw_only=True)
class PredictionConfig:
    """What to predict, and how to read rows."""

    task: Literal["embeddings"] | None = None
    """What to predict (None: according to the model's head; embeddings without a head)."""
    text: tuple[str, ...] | None = None
    """The column of the text, or the two columns of a pair or of a question and its context (None:
    the columns of the run's data, otherwise recognised by name).
    """
    scores: bool = False
    """Whether to add the probabilities of all labels, or of each tag."""
    null: bool = True
    """Whether a question may have no answer, in which case the answer may be empty."""
    pooling: Pooling = "mean"
    """The embedding of a text: the mean of its tokens' states, or the state of the first or last.
    """
    normalize: bool = False
    """Whether to scale embeddings to length 1."""
    max_length: int | None = None
    """The maximum number of tokens of a row; longer rows are truncated (None: as in training)."""
    batch_size: int = 32
    """The number of rows per batch."""
    interpolate_positions: bool = False
    """Allow images of other sizes than the model's, by resizing its tables of positions."""

    def __post_init__(self):
        check_types(self)
        check_arguments(
            batch_size=(self.batch_size, at_least(1)),
            max_length=(self.max_length, optional(at_least(8))),
        )
        count = len(self.text or ("text",))
        check_argument("text", self.text, count in (1, 2), "one column or two")


def open_predictor(
    folder: str | Path,
    config: PredictionConfig | None = None,
    *,
    step: int | None = None,
    best: bool = False,
    dtype: str | None = None,
    strict: bool = False,
    architecture: str | None = None,
    writer: Callable[[Subject, str | None], Predictor] | None = None,
) -> Predictor:
    """Opens a model as a predictor for rows of a table.

    `writer` makes the predictor of a speech-to-text model, given the language of its run, if any.
    """
    config = config or PredictionConfig()
    folder = model_folder(folder, "folder", architecture=architecture)
    # Left out if false, since some models always interpolate.
    fields = {"interpolate_positions": True} if config.interpolate_positions else {}
    which = {"step": step, "best": best, "strict": strict, "architecture": architecture}
    pretrained = with_stored_compute_dtype(load(folder, dtype=dtype, **which, **fields))
    _check_length(pretrained, config.max_length)
    if writer is not None and config.task is None and _transcribes(pretrained):
        return writer(*_sounds_of(folder, pretrained, config))
    head = _head(folder, pretrained, config)
    if is_hf_checkpoint(folder):
        name = None if head is None else head.name
        reader = _hf_reader(pretrained, name, config.max_length)
        labels = ()
        text = None
    else:
        home, _ = run_and_step(folder)
        run, kept = RunConfig(home).config, kept_files(home)
        reader = _run_reader(kept, run, pretrained, head, config.max_length)
        labels = load_labels(kept)
        text = _columns_of(run.data)
    labels = labels or label_names(pretrained)
    text = config.text or text
    subject = Subject(pretrained, reader, text, config.batch_size)
    return _predictor(head, subject, config, labels)


def _predictor(
    head: Head | None, subject: Subject, config: PredictionConfig, labels: tuple[str, ...]
) -> Predictor:
    """Returns the predictor for a head, or for embeddings."""
    options = PredictionOptions(labels, config.scores, config.normalize)
    reader = subject.reader

    def vectors(model, arrays):
        return pool(*reader.states(model, arrays), config.pooling).astype(jnp.float32)

    def probabilities(model, arrays):
        return head.probabilities(reader.scores(model, arrays))

    if head is None:
        return RowPredictor(subject, vectors, partial(embedding, normalize=config.normalize))
    if head.unit == "span":
        return AnswerPredictor(subject, head, config.null)
    if head.unit == "token":
        return TagPredictor(subject, probabilities, options)
    return RowPredictor(subject, probabilities, partial(head.prediction, options=options))


def _head(folder: Path, pretrained: Pretrained, config: PredictionConfig) -> Head | None:
    """Returns the head to predict with, or None for embeddings."""
    heads = pretrained.config.heads
    if config.task == "embeddings" or not heads:
        return None
    head = heads[0]
    if not head.predicts:
        advice = head.predict_advice(folder)
        if _transcribes(pretrained):
            advice = f"python -m jaxformer transcribe {folder} FILE ... transcribes sounds"
        raise ConfigError(
            f"{folder}: its head ({type(head).__name__}) cannot predict rows of a table: {advice}"
        )
    return head


def _transcribes(pretrained: Pretrained) -> bool:
    """Whether a model transcribes sounds instead of labelling them."""
    config = pretrained.config
    reads = {"spectrograms", "waveforms"} & {*config.required}
    return bool(reads) and bool(config.heads) and not config.heads[0].predicts


def _sounds_of(
    folder: Path, pretrained: Pretrained, config: PredictionConfig
) -> tuple[Subject, str | None]:
    """Returns the sounds of a table for a speech-to-text model, and the language of its run."""
    model = pretrained.config
    form = form_of(getattr(model, "encoder", model), pretrained.folder)
    data = None if is_hf_checkpoint(folder) else RunConfig(run_and_step(folder)[0]).config.data
    column = getattr(data, "audio", None)
    text = config.text or (None if column is None else (column,))
    subject = Subject(pretrained, SoundReader(form, None), text, config.batch_size)
    return subject, getattr(data, "language", None)


def _hf_reader(pretrained: Pretrained, name: str | None, max_length: int | None) -> Reader:
    form = form_of(pretrained.config, pretrained.folder)
    if form is not None:
        return SoundReader(form, name, max_length)
    if "spectrograms" in pretrained.config.required:
        raise ConfigError(
            f"{pretrained.folder} reads sound but does not classify it: compute its outputs with "
            'jaxformer.forward(model, {"input_features": spectrograms})'
        )
    if "images" in pretrained.config.required:
        return HFImageReader(pretrained)
    return HFReader(pretrained, max_length)


def _run_reader(
    home: Path, run: Config, pretrained: Pretrained, head: Head | None, max_length: int | None
) -> Reader:
    """Returns the reader of a run's training data, or of its imported checkpoint."""
    data = run.data
    name = None if head is None else head.name
    imported = pretrained.folder.name == IMPORTED
    if isinstance(data, Images):
        untrained = imported and run.init_from is None
        return HFImageReader(pretrained) if untrained else RunImageReader(data, name)
    if isinstance(data, LabelledClips):
        return SoundReader(data.form, name, max_length or data.longest)
    if data.head == "language_model" and imported:
        return HFReader(pretrained, max_length)
    return RunReader(data, load_tokenizer(home), pretrained.config, name, max_length)


def _columns_of(data: Data) -> tuple[str, ...] | None:
    """Returns the columns that a run reads, or None to recognise them by name."""
    if isinstance(data, LabelledClips):
        return None if data.audio is None else (data.audio,)
    return getattr(data, "text", None)


def label_names(pretrained: Pretrained) -> tuple[str, ...]:
    """Returns the labels in config.json, or LABEL_0, ... as in transformers."""
    names = pretrained.checkpoint.hf_config.values.get("id2label") or {}
    names = {int(key): str(name) for key, name in names.items()}
    count = max((head.num_labels or 0 for head in pretrained.config.heads), default=0)
    return tuple(names.get(key, f"LABEL_{key}") for key in range(count))


def _check_length(pretrained: Pretrained, length: int | None) -> None:
    if length is not None:
        try:
            pretrained.config.check_lengths({"inputs": length})
        except ConfigError as error:
            raise ArgumentError(f"max_length = {length}: {error}") from error
