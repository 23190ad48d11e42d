"""A Hugging Face checkpoint as a `Checkpoint`, with an optional PEFT adapter merged into it."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.hub.checkpoint import HFCheckpoint
from jaxformer.hub.weights.file_layout import Layout
from jaxformer.hub.weights.opening import layout_of
from jaxformer.hub.weights.parts import part_of, tensors_in
from jaxformer.hub.weights.weight_file import WeightFile, load_parameters, named_placements
from jaxformer.models.model import ModelConfig
from jaxformer.models.parameters import AbstractModel, Parameters
from jaxformer.pretrained.checkpoint import Checkpoint, Shardings
from jaxformer.pretrained.model import described_by
from jaxformer.pretrained.reader import open_folder
from jaxformer.zoo.folders import image_class, read_folder, sound_class


class FolderCheckpoint(Checkpoint):
    """The checkpoint in `home`, merged with the PEFT adapter `adapter`; see `open_checkpoint`."""

    def __init__(
        self,
        folder: Path,
        home: Path,
        adapter: Path | None = None,
        *,
        weights: bool = True,
        may_lack_parts: bool = False,
        images_alone: bool = False,
        sounds_alone: bool = False,
        architecture: str | None = None,
        strict: bool = False,
        fields: Mapping[str, Any] | None = None,
    ):
        self.folder, self.home = folder, home
        if images_alone and architecture is None:
            architecture = image_class(home)
        if sounds_alone and architecture is None:
            architecture = sound_class(home)
        if not weights:
            self._describe_as(read_folder(home, strict, architecture))
            return
        self._reader = open_folder(
            home, may_lack_parts, architecture, adapter, strict, **(fields or {})
        )
        self._describe_as(self._reader.checkpoint)
        self.adapted = self._reader.adapted
        missing = self._reader.file.missing_parts
        shapes = self._reader.abstract_model.shapes
        self.shapes = {n: x.shape for n, x in shapes.items() if part_of(n) not in missing}
        self._other_parts: WeightFile | None = None

    def _describe_as(self, description: HFCheckpoint) -> None:
        self.model = description.config
        self.describe = described_by(description)

    @cached_property
    def layout(self) -> Layout | None:
        """The layout of the files."""
        return layout_of(self.home)

    def add_parts(self, model: ModelConfig) -> None:
        """Adds the parts of another class, such as a pre-trained pooler for a classifier."""
        if type(model) is not type(self.model):
            return
        structure = AbstractModel(model.build)
        model_format = self.description.model_format
        here, there = (
            {part_of(name) for name in names} for names in (structure.shapes, self.shapes)
        )
        try:
            placements = named_placements(model_format, model, structure, model_format.prefix)
        except ConfigError:
            return  # these files never have such parts (DINOv3)
        wanted = tensors_in(placements, here - there)
        self._other_parts = self._reader.file.other_parts(model_format, wanted)
        if self._other_parts is not None:
            found = self._other_parts.parameters
            self.shapes |= {name: structure.shapes[name].shape for name in found}

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Reads parameters into host memory, by name."""
        others = () if self._other_parts is None else self._other_parts.parameters
        return {
            name: self._other_parts.read(name, self.shapes[name])
            if name in others
            else self._reader.read(name)
            for name in names
        }

    def place(self, shardings: Shardings, dtype: str | None) -> Parameters:
        """Reads all parameters into their shardings."""
        return load_parameters(self._reader.file, self._reader.abstract_model, shardings, dtype)

    def _tokenizer_folders(self) -> tuple[Path, ...]:
        return self.folder / "tokenizer", self.folder, self.home
