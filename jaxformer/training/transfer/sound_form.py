"""Fills in how sounds are read, and transcripts begin, from the checkpoint of an experiment."""

from jaxformer.config.experiment import Config
from jaxformer.data.tasks.sounds.features import SoundForm, form_of
from jaxformer.data.tasks.sounds.speech_to_text import SpeechToText
from jaxformer.errors import ConfigError, DataError
from jaxformer.generation.speech.tokens import SpeechTokens
from jaxformer.io.components import with_values
from jaxformer.models import ModelConfig, SpectrogramConfig
from jaxformer.pretrained.checkpoint import Checkpoint
from jaxformer.pretrained.model import Pretrained


def with_sound_form(config: Config, origin: Checkpoint) -> Config:
    """Returns the experiment with labelled sounds read as its checkpoint reads them."""
    form = _form_of(origin.model, origin)
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
    values = {"data.features": _form_of(encoder, origin), "data.prefix": _prefix(data, origin)}
    return with_values(config, values)


def _form_of(encoder: ModelConfig, origin: Checkpoint) -> SoundForm | None:
    """Returns how an encoder of a checkpoint reads sounds; None: it does not."""
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
            "model knows several"
        )
    task = data.task if tokens.tasks or data.task != "transcribe" else None
    try:
        return tuple(tokens.prefix(data.language, task, timestamps=False))
    except ConfigError as error:
        raise ConfigError(f"data.{error}") from error
