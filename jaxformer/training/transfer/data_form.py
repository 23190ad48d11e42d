"""Fills in the preprocessing and objective of an experiment's data from its checkpoint."""

from dataclasses import replace
from typing import Any

from jaxformer.checkpoints.run_dir import IMPORTED
from jaxformer.config.experiment import Config
from jaxformer.data import CausalLM, Denoising, MaskedLM, Objective, SpanCorruption, Tokenizer
from jaxformer.data.tasks.images.labelled import FORM, Images
from jaxformer.data.tasks.images.pixels import Resize
from jaxformer.data.tasks.sounds.features import SoundForm, form_of
from jaxformer.data.tasks.sounds.speech_to_text import SpeechToText
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.speech.tokens import SpeechTokens
from jaxformer.io.components import with_values
from jaxformer.models import ModelConfig, SpectrogramConfig, VisionConfig
from jaxformer.pretrained.checkpoint import Checkpoint, RunCheckpoint
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.prediction.image_settings import ImageSettings


def with_image_form(config: Config, origin: Checkpoint, model_is_open: bool) -> Config:
    """Returns the experiment with the image preprocessing of its checkpoint."""
    data, model = config.data, config.model
    if not isinstance(model, VisionConfig):
        raise ConfigError(
            f"{type(data).__name__} contains images, which {type(model).__name__} of "
            f"{config.init_from} does not read: name a checkpoint of a ViT or a similar model"
        )
    form = _image_form(origin, origin.model.image_size, model.channels)
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
        # transformers can also read such a file (MAE) as a ViT.
        model = replace(model, mask_ratio=None, position=replace(model.position, learns=True))
    return replace(config, model=model if model.image_size == size else _of_size(model, size))


def _image_form(origin: Checkpoint, usual: tuple[int, int], channels: int) -> dict[str, Any]:
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


def with_sound_form(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with the checkpoint's preprocessing of labelled sounds."""
    form = _sound_form(origin.model, origin)
    if form is None:
        raise ConfigError(
            f"{type(config.data).__name__} contains sounds to be labelled, which "
            f"{type(origin.model).__name__} of {config.init_from} does not read: name a folder of "
            "a wav2vec 2.0, a HuBERT, an Audio Spectrogram Transformer or a Whisper"
        )
    return with_values(config, {"data.form": form})


def with_transcripts(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with the spectrograms of its checkpoint, and the prefix of texts."""
    data, model = config.data, origin.model
    encoder = model.parts.get("encoder")
    if not isinstance(encoder, SpectrogramConfig):
        raise ConfigError(
            f"{type(data).__name__} contains sounds to be transcribed, which "
            f"{type(model).__name__} of {config.init_from} does not write: name a Whisper"
        )
    values = {"data.features": _sound_form(encoder, origin), "data.prefix": _prefix(data, origin)}
    return with_values(config, values)


def _sound_form(encoder: ModelConfig, origin: Checkpoint) -> SoundForm | None:
    """Returns how an encoder of a checkpoint reads sounds, or None if it does not."""
    try:
        return form_of(encoder, origin.home)
    except DataError as error:
        raise ConfigError(f"--init-from: {error}") from error


def _prefix(data: SpeechToText, origin: Checkpoint) -> tuple[int, ...]:
    """Returns the first tokens of a transcript."""
    if data.prefix:
        return data.prefix
    described = Pretrained(
        config=origin.model,
        parameters={},
        describe=origin.describe,
        folder=origin.home,
        token_values=origin.token_values,
    )
    tokens = SpeechTokens.of(described)
    if data.language is None and tokens.languages:
        codes = ", ".join(name.strip("<|>") for name, _ in tokens.languages)
        raise ConfigError(
            f"data.language = None: must be one of {codes}, the language of the clips, since the "
            "model supports several"
        )
    task = data.task if tokens.tasks or data.task != "transcribe" else None
    try:
        return tuple(tokens.prefix(data.language, task, timestamps=False))
    except ConfigError as error:
        raise ConfigError(f"data.{error}") from error


def pretraining_objective(model: ModelConfig, tokenizer: Tokenizer) -> Objective:
    """Returns the pre-training objective that matches a model and its tokenizer.

    A decoder predicts the next token, an encoder predicts masked tokens. An encoder-decoder whose
    tokenizer has sentinel tokens predicts masked spans like T5; one whose tokenizer has a start
    token and a mask token denoises texts like BART.
    """
    if model.causal:
        return CausalLM(begin_of_text=True)
    if not model.is_encoder_decoder:
        return MaskedLM()
    if _has(tokenizer, "sentinels"):
        return SpanCorruption()
    if _has(tokenizer, "mask") and _begins_with_cls(tokenizer):
        return Denoising()
    raise ConfigError(
        "data.objective = None: the pre-training objective of this encoder-decoder is unknown, "
        "since its tokenizer has neither T5's sentinels (<extra_id_0>) nor BART's <s> and "
        "<mask>; name an objective: --data.objective SpanCorruption or Denoising"
    )


def _begins_with_cls(tokenizer: Tokenizer) -> bool:
    frame = tokenizer.frame(1)
    if frame is None or not _has(tokenizer, "cls"):
        return False
    return frame.gaps[0] == tuple(tokenizer.special_ids("cls"))


def _has(tokenizer: Tokenizer, role: Role) -> bool:
    try:
        return len(tokenizer.special_ids(role)) > 0
    except ConfigError:
        return False
