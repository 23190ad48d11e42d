"""Fills in image preprocessing from the checkpoint that an experiment starts from."""

from dataclasses import replace
from typing import Any

from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.config.experiment import Config
from jaxformer.data.tasks.images.labelled import FORM, Images
from jaxformer.data.tasks.images.pixels import Resize
from jaxformer.errors import ConfigError, DataError
from jaxformer.models import VisionConfig
from jaxformer.pretrained.checkpoint import Checkpoint, RunCheckpoint
from jaxformer.pretrained.prediction.image_settings import ImageSettings


def with_form(config: Config, origin: Checkpoint, model_is_open: bool) -> Config:
    """Returns the experiment with the image preprocessing of its checkpoint."""
    data, model = config.data, config.model
    if not isinstance(model, VisionConfig):
        raise ConfigError(
            f"{type(data).__name__} contains images, which {type(model).__name__} of "
            f"{config.init_from} does not read: name a checkpoint of a ViT or a similar model"
        )
    form = _form_of(origin, origin.model.image_size, model.channels)
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
        # transformers also reads such a file (MAE) as a ViT's.
        model = replace(model, mask_ratio=None, position=replace(model.position, learns=True))
    return replace(config, model=model if model.image_size == size else _of_size(model, size))


def _form_of(origin: Checkpoint, usual: tuple[int, int], channels: int) -> dict[str, Any]:
    """Returns the fields of `FORM` with a checkpoint's image preprocessing."""
    if isinstance(origin, RunCheckpoint) and isinstance(origin.config.data, Images):
        untrained = origin.home.name == IMPORTED and origin.config.init_from is None
        if not untrained:
            return {name: getattr(origin.config.data, name) for name in FORM}
    try:
        settings = ImageSettings.of_folder(origin.home)
    except DataError as error:
        options = ", ".join(f"--data.{name.replace('_', '-')}" for name in FORM)
        raise ConfigError(f"--init-from: {error}; or set {options}") from error
    size, scaling = settings.of_one_size(usual)
    mean, std = settings.normalisation(channels)
    return dict(zip(FORM, (size, channels, mean, std, scaling), strict=True))


def _of_size(model: VisionConfig, size: tuple[int, int]) -> VisionConfig:
    """Returns the model for images of another size."""
    grid = tuple(side // patch for side, patch in zip(size, model.patch_size, strict=True))
    fitted = model.for_grid(grid) if min(grid) else model
    if fitted.image_size != size:
        raise ConfigError(
            f"data.image_size = {size}: must be a multiple of the patch size, "
            f"{model.patch_size[0]} x {model.patch_size[1]} pixels, such as {fitted.image_size}"
        )
    return fitted
