"""``jaxformer lab attention``: the attention maps of a trained model."""

from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import ModelChoice
from jaxformer.errors import ArgumentError
from jaxformer.lab.attention.maps import AttentionMaps, image_maps, text_maps
from jaxformer.lab.attention.report import Format, write_maps
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor


@dataclass(frozen=True, kw_only=True)
class Attention(ModelChoice):
    """Draws the attention maps of a trained model.

    Writes an interactive page with all heads of all layers, and figures: an overview of all heads,
    and the heads of each layer with tokens. An encoder-decoder has three kinds of maps: encoder and
    decoder self-attention, and cross-attention.
    """

    text: str | None = None
    """The input of a text model."""
    target: str | None = None
    """The decoder input of an encoder-decoder (default: its greedy output)."""
    image: Path | None = None
    """The input file of an image model."""
    layers: tuple[int, ...] | None = None
    """The layers to show, from 0 (default: all)."""
    heads: tuple[int, ...] | None = None
    """The heads to show, from 0 (default: all)."""
    format: Format = "png"
    """The format of the figures."""
    out: Path = Path("runs/lab-attention")
    """The output folder for attention.html and the figures."""


def attention(options: Attention) -> None:
    """Writes the attention maps of a model on a text or an image."""
    if (options.text is None) == (options.image is None):
        raise ArgumentError(
            'give either --text "..." for a text model or --image FILE for an image model'
        )
    maps = [each.select(options.layers, options.heads) for each in _maps(options)]
    what = options.image.name if options.text is None else options.text
    title = f"Attention of {Path(options.folder).resolve().name}: {what}"
    page, *pictures = write_maps(options.out, title, maps, options.format)
    for each in maps:
        layers, heads, queries, keys = each.weights.shape
        print(f"{each.name}: {layers} layers, {heads} heads, {queries} queries, {keys} keys")
    print(f"written: {page}, and {len(pictures)} figures next to it")


def _maps(options: Attention) -> list[AttentionMaps]:
    if options.image is None:
        return text_maps(load(options.folder, **options.how), options.text, options.target)
    if options.target is not None:
        raise ArgumentError("--target: must be left out with --image, since there is no decoder")
    embeddings = PredictionConfig(task="embeddings")
    predictor = open_predictor(options.folder, embeddings, dtype="float32", **options.how)
    return [image_maps(predictor.subject.pretrained, predictor.reader, options.image)]
