"""The output files of `lab speech`: a page, its figures, and interactive attention maps."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.generation.inputs import reads_sound
from jaxformer.generation.speech.features import filter_banks_of, log_mel_of, waveform_features_of
from jaxformer.generation.speech.frames import writes_labels
from jaxformer.lab.attention.maps import AttentionMaps
from jaxformer.lab.attention.report import write_maps
from jaxformer.lab.drawing import save
from jaxformer.lab.page import Page
from jaxformer.lab.selection import selected
from jaxformer.lab.speech.alignment import alignment_picture, answer_maps, answer_of
from jaxformer.lab.speech.attention import patterns, time_maps
from jaxformer.lab.speech.classes import (
    classes_picture,
    classified_spectrogram,
    patch_weights,
    patches_picture,
    top_classes,
)
from jaxformer.lab.speech.lattice import (
    MOST_PARTS,
    Labelled,
    emissions_picture,
    labelled,
    lattice_pictures,
)
from jaxformer.lab.speech.sound import Sound, Spectrogram, sound_picture, spectrogram_of
from jaxformer.models import SpectrogramPatchesConfig, WaveformConfig
from jaxformer.models.heads.labels import Classification
from jaxformer.pretrained.model import Pretrained

PAGE = "speech.html"


@dataclass(frozen=True)
class SpeechReport:
    """The report on Whisper, wav2vec 2.0, HuBERT or an Audio Spectrogram Transformer."""

    folder: Path
    pretrained: Pretrained
    sound: Sound
    _: KW_ONLY
    text: str | None = None
    """The text to align; None for the model's transcript."""
    language: str | None = None
    """The language for Whisper; None to detect it."""
    layers: Sequence[int] | None = None
    """The layers whose attention is shown; None for all."""
    heads: Sequence[int] | None = None

    @cached_property
    def _page(self) -> Page:
        return Page(f"{Path(self.pretrained.folder).name} hears {self.sound.name}")

    def write(self) -> Path:
        """Writes the page and its figures; returns the page."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config = self.pretrained.config
        if reads_sound(self.pretrained):
            self._whisper()
        elif isinstance(config, SpectrogramPatchesConfig):
            self._patches()
        else:
            self._waveform()
        return self._page.write(self.folder / PAGE)

    def _whisper(self) -> None:
        answer, spectrogram = answer_of(self.pretrained, self.sound, self.text, self.language)
        self._spectrogram(spectrogram, answer.words, "The log-mel spectrogram that Whisper reads")
        self._page.section("Text and alignment")
        if answer.alignment is None:
            self._page.text("The model's transcript is empty.")
        else:
            self._add_text(answer.text, answer.words, answer.language)
            self._figure(
                "alignment",
                alignment_picture(answer),
                "Each row is a token: the attention of the alignment heads, minus the mean over "
                "the tokens. The red path is the cheapest one that moves forward in both; a token "
                "begins where the path enters its row.",
            )
        self._attention(answer_maps(self.pretrained, answer, self.layers))

    def _waveform(self) -> None:
        pretrained, config = self.pretrained, self.pretrained.config
        features = waveform_features_of(pretrained)
        found = labelled(pretrained, self.sound, self.text) if writes_labels(pretrained) else None
        words = [] if found is None else found.words
        about = "A log-mel spectrogram for the eye; the model reads the waveform"
        self._spectrogram(spectrogram_of(self.sound), words, about)
        inputs = {"input_values": features(self.sound.waveform)[None]}
        if found is not None:
            self._page.section("Text and lattice")
            self._add_text(found.text, found.words)
            self._lattice(found)
        self._classes(inputs)
        chosen = selected("layers", self.layers, range(config.num_layers))
        weights = patterns(pretrained, inputs, "blocks.{}.attn.hook_pattern", chosen)
        seconds = config.samples_per_frame / features.sampling_rate
        maps = time_maps("self-attention", weights, chosen, seconds, weights.shape[-1])
        self._attention([maps])

    def _lattice(self, found: Labelled) -> None:
        """Adds the figures of a CTC head."""
        self._figure(
            "emissions",
            emissions_picture(found),
            "The output of the head: a probability for each token and frame. Without repetitions "
            "and blanks, the red path is the greedy transcript.",
        )
        pictures = lattice_pictures(found)
        for number, picture in enumerate(pictures):
            self._figure(
                f"lattice-{number:02d}",
                picture,
                "The rows are the labels of the text with blanks between them. An alignment stays "
                "in a row, goes to the next, or skips a blank. Blue is the share of all "
                "alignments, weighted by probability, that pass there; the red path is the most "
                "likely one.",
            )
        if len(pictures) == MOST_PARTS:
            self._page.text(f"A long text is drawn in at most {MOST_PARTS} parts.")

    def _patches(self) -> None:
        pretrained, config = self.pretrained, self.pretrained.config
        spectrogram = classified_spectrogram(pretrained, self.sound)
        about = "The filter banks that the Audio Spectrogram Transformer reads"
        self._spectrogram(spectrogram, [], about)
        inputs = {"input_values": spectrogram.values[None]}
        self._classes(inputs)
        chosen = selected("layers", self.layers, range(config.num_layers))
        weights = patch_weights(pretrained, inputs, chosen)
        heads = selected("heads", self.heads, range(weights.shape[1]))
        second = spectrogram.seconds_per_frame
        times = config.patch_stride[1] * second, config.patch_size[1] * second
        self._page.section("Attention over time")
        drawn = spectrogram, times
        names = [f"layer {layer}" for layer in chosen]
        title = "Attention of the class token: mean over heads"
        self._figure(
            "attention-layers",
            patches_picture(title, weights.mean(axis=1), names, *drawn),
            "A cell is a patch. Blue is relative to the largest weight of a map within the sound.",
        )
        for layer, own in zip(chosen, weights, strict=True):
            title = f"Attention of the class token in layer {layer}"
            names = [f"head {head}" for head in heads]
            picture = patches_picture(title, own[heads], names, *drawn)
            self._figure(f"attention-layer-{layer:02d}", picture, title)

    def _spectrogram(
        self, spectrogram: Spectrogram, words: Sequence[Mapping[str, Any]], about: str
    ) -> None:
        self._page.section("Sound")
        picture = sound_picture(self.sound, spectrogram, words)
        where = ", with each word at its time" if words else ""
        self._figure("spectrogram", picture, f"{about}{where}.")

    def _add_text(
        self, text: str, words: Sequence[Mapping[str, Any]], language: str | None = None
    ) -> None:
        given = "Given" if self.text is not None else "The model writes"
        where = "" if language is None else f" (language: {language})"
        self._page.text(f"{given}{where}: {text}" if text else f"{given}{where} no text.")
        if words:
            rows = [(word["word"].strip(), word["start"], word["end"]) for word in words]
            self._page.table(rows, ("word", "start (s)", "end (s)"))

    def _classes(self, inputs: Mapping[str, Any]) -> None:
        if any(isinstance(head, Classification) for head in self.pretrained.config.heads):
            self._page.section("Classes")
            classes = top_classes(self.pretrained, inputs)
            caption = "The probabilities of the likeliest classes, over all classes."
            self._figure("classes", classes_picture(classes), caption)

    def _attention(self, maps: Sequence[AttentionMaps]) -> None:
        """Adds an overview of each kind of attention; all heads are on a separate page."""
        maps = [each.select(heads=self.heads) for each in maps]
        title = f"Attention over time: {self.sound.name}"
        viewer, *pictures = write_maps(self.folder, title, maps)
        self._page.section("Attention over time")
        self._page.html(
            f'<p><a href="{viewer.name}">{viewer.name}</a> shows every head; the files next to it '
            "have a figure of each layer.</p>"
        )
        for picture in pictures:
            if picture.stem.endswith("overview"):
                kind = picture.stem.removesuffix("-overview").replace("-", " ")
                self._page.figure(
                    picture,
                    f"{kind}: a map for each head. Time goes to the right, and for self-attention "
                    "also down, without the padding after the sound; neighbours are joined to at "
                    "most 120 steps.",
                )

    def _figure(self, name: str, figure: Any, caption: str) -> None:
        self._page.figure(save(figure, self.folder / f"{name}.png"), caption)


def sampling_rate_of(pretrained: Pretrained) -> int:
    """Returns the sampling rate of a speech model, or raises ConfigError for other models."""
    config = pretrained.config
    if reads_sound(pretrained) and config.is_encoder_decoder:
        return log_mel_of(pretrained).sampling_rate
    if isinstance(config, WaveformConfig):
        return waveform_features_of(pretrained).sampling_rate
    if isinstance(config, SpectrogramPatchesConfig):
        return filter_banks_of(pretrained).sampling_rate
    raise ConfigError(
        f"lab speech: {pretrained.folder} has the model_type "
        f"{pretrained.checkpoint.model_format.model_type!r}: must be a Whisper that transcribes, a "
        "wav2vec 2.0, a HuBERT or an Audio Spectrogram Transformer"
    )
