"""How images are read where an experiment leaves that to the checkpoint it starts from."""

from dataclasses import replace
from typing import Any

from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.checkpoints.saved_run import SavedRun
from jaxformer.config.experiment import Config
from jaxformer.data import Data
from jaxformer.data.tasks.images.labelled import Images
from jaxformer.data.tasks.images.pixels import Resize
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import VisionConfig
from jaxformer.pretrained.prediction.image_settings import ImageSettings
from jaxformer.training.transfer.origin import Origin

FORM = ("image_size", "channels", "mean", "std", "scaling")
"""The fields of data of images that may be left to a checkpoint."""


def leaves_form_open(data: Data) -> bool:
    """Whether how images are read is the checkpoint's."""
    return isinstance(data, Images) and any(getattr(data, name) is None for name in FORM)


def with_form(config: Config, origin: Origin, model_is_open: bool) -> Config:
    """Returns the experiment with images as the checkpoint reads them.

    Args:
        config: The experiment, with a model.
        origin: The checkpoint.
        model_is_open: Whether the model is the checkpoint's: then it gets the size of the images,
            and its tables of positions are resized where they start.

    Raises:
        ConfigError: The checkpoint does not say how it reads images, or the model reads none, or
            none of this size.
    """
    data, model = config.data, config.model
    if not isinstance(model, VisionConfig):
        raise ConfigError(
            f"{type(data).__name__} is of images, which {type(model).__name__} of "
            f"{config.init_from} does not read: name a checkpoint of a ViT or one of its relatives"
        )
    form = _form_of(origin, origin.checkpoint.config.image_size, model.channels)
    usual = form["image_size"]
    size = data.image_size or (usual if model_is_open else model.image_size)
    if isinstance(form["scaling"], Resize):
        form["scaling"] = form["scaling"].rescaled(usual, size)
    form["image_size"] = size
    left = {name: form[name] for name in FORM if getattr(data, name) is None}
    config = replace(config, data=replace(data, **left))
    if not model_is_open:
        return config
    if data.head == "classification" and model.mask_ratio is not None:
        # As transformers reads such a file (MAE) as that of a ViT.
        model = replace(model, mask_ratio=None, position=replace(model.position, learns=True))
    return replace(config, model=model if model.image_size == size else _of_size(model, size))


def _form_of(origin: Origin, usual: tuple[int, int], channels: int) -> dict[str, Any]:
    """The fields of `FORM` that say how a checkpoint reads images."""
    saved = origin.saved
    if isinstance(saved, SavedRun) and isinstance(saved.config.data, Images):
        untrained = origin.home.name == IMPORTED and saved.config.init_from is None
        if not untrained:
            return {name: getattr(saved.config.data, name) for name in FORM}
    try:
        settings = ImageSettings.of_folder(origin.home)
    except DataError as error:
        options = ", ".join(f"--data.{name.replace('_', '-')}" for name in FORM)
        raise ConfigError(f"--init-from: {error}; or say it with {options}") from error
    size, scaling = settings.of_one_size(usual)
    mean, std = settings.normalisation(channels)
    return dict(zip(FORM, (size, channels, mean, std, scaling), strict=True))


def _of_size(model: VisionConfig, size: tuple[int, int]) -> VisionConfig:
    """The model for images of another size."""
    grid = tuple(side // patch for side, patch in zip(size, model.patch_size, strict=True))
    fitted = model.for_grid(grid) if min(grid) else model
    if fitted.image_size != size:
        raise ConfigError(
            f"data.image_size = {size}: must be whole patches of {model.patch_size[0]} x "
            f"{model.patch_size[1]} pixels, such as {fitted.image_size}"
        )
    return fitted
