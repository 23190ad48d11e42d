"""A saved model: its description, its tokenizer, and its parameters, read one by one."""

import abc
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from jaxformer.checkpoints.run_dir import IMPORTED, kept_files, read_config
from jaxformer.checkpoints.saved_run import SavedRun, run_and_step
from jaxformer.checks import check_argument
from jaxformer.config.experiment import Config
from jaxformer.data.chat.template import TEMPLATE, ChatTemplate, read_chat_template
from jaxformer.data.labels import load_labels
from jaxformer.data.tokenizers.files import tokenizer_file
from jaxformer.data.tokenizers.specs import Tokenizer, load_tokenizer
from jaxformer.distributed.sharding import parameter_shardings
from jaxformer.hub.weights.arrays import check_finite
from jaxformer.io.model_files import CONFIG, LAYOUT, file_in, read_object
from jaxformer.io.paths import AnyPath
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.pretrained.model import Pretrained

if TYPE_CHECKING:
    from jaxformer.hub.checkpoint import HFCheckpoint
    from jaxformer.hub.weights.file_layout import Layout

DTYPES = ("float32", "bfloat16", "float16")
"""The dtypes in which weights are loaded and saved."""
Shardings = Mapping[str, jax.sharding.Sharding]


class Checkpoint(abc.ABC):
    """A saved model, whose parts are read on first use."""

    folder: AnyPath
    """The requested folder: a run, a Hugging Face checkpoint or an adapter."""
    home: Path
    """The local folder with the model's tokenizer, config.json and other files."""
    model: ModelConfig
    """The model."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each stored parameter, by name."""
    step: int = 0
    """The step of the run."""
    adapted: frozenset[str] = frozenset()
    """The parameters with merged low-rank factors."""
    describe: Callable[[ModelConfig], "HFCheckpoint"]
    """Returns the description of a configuration of the model in the terms of transformers."""
    token_values: Mapping[str, Any] | None = None
    """The token fields of config.json, for a run that defines all of them."""

    @abc.abstractmethod
    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into host memory, by name."""

    @abc.abstractmethod
    def place(self, shardings: Shardings, dtype: str | None) -> Parameters:
        """Reads all parameters into their shardings; `dtype` None keeps the files' dtype."""

    @cached_property
    def description(self) -> "HFCheckpoint":
        """The description of the model in the terms of transformers."""
        return self.describe(self.model)

    @property
    @abc.abstractmethod
    def layout(self) -> "Layout | None":
        """The layout of the Hugging Face files that the weights came from, if any."""

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that a run was trained with, if any."""
        return ()

    @cached_property
    def tokenizer_folder(self) -> Path | None:
        """The folder with the tokenizer, or None."""
        return next((x for x in self._tokenizer_folders() if tokenizer_file(x) is not None), None)

    @cached_property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer, or None."""
        folder = self.tokenizer_folder
        return None if folder is None else load_tokenizer(folder)

    @cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The chat template, or None."""
        return read_chat_template(template_folder(self.home))

    @abc.abstractmethod
    def _tokenizer_folders(self) -> tuple[Path, ...]:
        """The folders that may contain the tokenizer, in order of preference."""

    def add_parts(self, model: ModelConfig) -> None:
        """Adds heads and poolers that are in the files but not in the checkpoint's class."""
        del model

    def load(self, dtype: str | None, mesh: jax.sharding.Mesh | None = None) -> Pretrained:
        """Returns the model with all its weights; see `jaxformer.load` for the arguments."""
        shardings = dict.fromkeys(self.shapes, SingleDeviceSharding(jax.devices()[0]))
        if mesh is not None:
            structure = AbstractModel(self.model.build)
            shardings = parameter_shardings(mesh, structure.axes, structure.shapes)
        parameters = self.place(shardings, dtype)
        self.close()
        return Pretrained(
            config=self.model,
            parameters=parameters,
            describe=self.describe,
            folder=self.home,
            layout=None if dtype else self.layout,
            token_values=self.token_values,
        )

    def close(self) -> None:
        """Lets a run delete the checkpoint; nothing can be read afterwards."""
        return


class RunCheckpoint(Checkpoint):
    """A checkpoint of a run: averaged parameters if it keeps averages, low-rank factors merged.

    `load` merges the PEFT adapter in the folder `adapter`, if any; see `open_checkpoint`.
    """

    def __init__(
        self,
        folder: AnyPath,
        step: int | None = None,
        best: bool = False,
        weights: bool = True,
        adapter: Path | None = None,
        fields: Mapping[str, Any] | None = None,
    ):
        self.folder, self._adapter = folder, adapter
        if weights:
            self.saved = SavedRun(folder, step, best)
            self.run = self.saved.folder
            self.step = self.saved.step
            self.config: Config = self.saved.config
            self.shapes = self.saved.shapes
            self.adapted = self.saved.adapted
        else:
            self.run, _ = run_and_step(folder, step, best)
            self.config = read_config(self.run)
        self.model = self.config.model.with_fields(**(fields or {}))

    @cached_property
    def _kept(self) -> Path:
        return kept_files(self.run)

    @cached_property
    def home(self) -> Path:
        """The files of the checkpoint that the run started from, or else the run's tokenizer."""
        imported = self._kept / IMPORTED
        return imported if imported.is_dir() else self._kept / "tokenizer"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that the run was trained with."""
        chooses = any(head.num_labels is not None for head in self.model.heads)
        return load_labels(self._kept) if chooses else ()

    @cached_property
    def layout(self) -> "Layout | None":
        """The layout of the Hugging Face files that the run started from, if it keeps one."""
        if (file := file_in(self.home, LAYOUT)) is None:
            return None
        from jaxformer.hub.weights.opening import read_layout

        return read_layout(file)

    @cached_property
    def describe(self) -> Callable[[ModelConfig], "HFCheckpoint"]:
        """Describes a configuration of the model, with the fields and labels that the run keeps."""
        return partial(_described, self._kept_values, self.labels)

    @property
    def token_values(self) -> Mapping[str, Any] | None:
        """The ids of special tokens, for a run that defines all of them."""
        has_own = self._imported is None and not self.model.is_encoder_decoder
        return (self._kept_values or None) if has_own else None

    @cached_property
    def _imported(self) -> dict[str, Any] | None:
        """The config.json of the Hugging Face checkpoint that the run started from, if any."""
        return read_object(self.home, CONFIG)

    @cached_property
    def _kept_values(self) -> Mapping[str, Any]:
        """The fields of config.json that the run keeps, or the ids of its special tokens."""
        if self._imported is not None or tokenizer_file(self.home) is None:
            return self._imported or {}
        tokenizer = load_tokenizer(self.home)
        end, pad = tokenizer.end_of_text_id, tokenizer.pad_id
        ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": pad}
        decodes = self.model.is_encoder_decoder
        start = self.config.data.start_id(tokenizer) if decodes else None
        return ids | ({} if start is None else {"decoder_start_token_id": start})

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into host memory, by name."""
        return self.saved.read(names)

    def place(self, shardings: Shardings, dtype: str | None) -> Parameters:
        """Reads all parameters, each into its sharding."""
        arrays = self.read(shardings)
        # Frees each array once it is placed, so that memory never holds all of them twice.
        return {
            name: jax.device_put(_cast(f"{self.run}: {name}", arrays.pop(name), dtype), sharding)
            for name, sharding in shardings.items()
        }

    def load(self, dtype: str | None, mesh: jax.sharding.Mesh | None = None) -> Pretrained:
        """Returns the model with all its weights, and the adapter merged into them."""
        model = super().load(dtype, mesh)
        if self._adapter is None:
            return model
        from jaxformer.pretrained.reader import with_adapter

        return with_adapter(model, self._adapter, mesh)

    def close(self) -> None:
        """Lets the run delete the checkpoint."""
        self.saved.close()

    def _tokenizer_folders(self) -> tuple[Path, ...]:
        return self._kept / "tokenizer", self._kept


def checked_dtype(dtype: Any) -> str | None:
    """Returns the name of a parameter dtype, or None for None; raises ArgumentError for others."""
    if dtype is None:
        return None
    try:
        name = jnp.dtype(dtype).name
    except (TypeError, ValueError, SyntaxError):
        name = ""
    check_argument("dtype", dtype, name in DTYPES, f"one of {', '.join(DTYPES)}, or None")
    return name


def template_folder(home: Path) -> Path:
    """Returns the folder with the chat template of a model."""
    own = home.with_name("tokenizer")
    trained = home.name == IMPORTED and file_in(own, TEMPLATE) is not None
    return own if trained else home


def _described(
    kept: Mapping[str, Any], labels: tuple[str, ...], model: ModelConfig
) -> "HFCheckpoint":
    """Returns the description of a run's model, with the fields of config.json that it keeps."""
    from jaxformer.hub.describe import describe_model
    from jaxformer.hub.tasks.label_names import label_settings
    from jaxformer.zoo import FORMATS

    return describe_model(model, FORMATS.values(), kept | label_settings(model, labels, kept))


@np.errstate(over="ignore")  # `check_finite` reports overflows
def _cast(where: str, array: np.ndarray, dtype: str | None) -> np.ndarray:
    cast = array if dtype is None else array.astype(dtype, copy=False)
    check_finite(where, cast, array)
    return cast
