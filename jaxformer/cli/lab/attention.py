"""``jaxformer lab attention``: the attention maps of a trained model."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxformer.cli.options import ModelChoice, ModelDir
from jaxformer.config.overrides import parse
from jaxformer.errors import ArgumentError
from jaxformer.lab.attention.maps import AttentionMaps, image_maps, text_maps
from jaxformer.lab.attention.report import Format, write_maps
from jaxformer.pretrained.auto import load
from jaxformer.pretrained.prediction.api import PredictionConfig, open_predictor


@dataclass(frozen=True, kw_only=True)
class Attention(ModelChoice):
    """Draws the attention maps of a trained model.

    Writes a page to browse all heads of all layers, and pictures for print: an overview of all
    heads, and the heads of each layer with their tokens. An encoder-decoder has three kinds: those
    of the encoder, those of the decoder, and the cross-attention.
    """

    folder: ModelDir
    """The folder of a run or of a Hugging Face checkpoint; or its name on the hub, org/name or
    org/name@revision."""
    text: str | None = None
    """What a model of text reads."""
    target: str | None = None
    """What the decoder of an encoder-decoder reads (default: what it writes itself, greedily)."""
    image: Path | None = None
    """The file that a model of images reads."""
    layers: tuple[int, ...] | None = None
    """The layers to show, from 0 (default: all)."""
    heads: tuple[int, ...] | None = None
    """The heads to show, from 0 (default: all)."""
    format: Format = "png"
    """The format of the pictures."""
    out: Path = Path("runs/lab-attention")
    """The folder for attention.html and the pictures."""


def attention(arguments: Sequence[str], prog: str) -> None:
    """Writes the attention maps of a model on a text or an image."""
    wanted = parse(Attention, arguments, prog)
    if (wanted.text is None) == (wanted.image is None):
        raise ArgumentError('give one of the two: --text "..." for a model of text, --image FILE')
    maps = [each.select(wanted.layers, wanted.heads) for each in _maps(wanted)]
    what = wanted.image.name if wanted.text is None else wanted.text
    title = f"Attention of {Path(wanted.folder).resolve().name}: {what}"
    page, *pictures = write_maps(wanted.out, title, maps, wanted.format)
    for each in maps:
        layers, heads, queries, keys = each.weights.shape
        print(f"{each.name}: {layers} layers, {heads} heads, {queries} queries, {keys} keys")
    print(f"written: {page}, and {len(pictures)} pictures beside it")


def _maps(wanted: Attention) -> list[AttentionMaps]:
    if wanted.image is None:
        return text_maps(load(wanted.folder, **wanted.how), wanted.text, wanted.target)
    if wanted.target is not None:
        raise ArgumentError("--target: must be left out with --image; there is no decoder")
    embeddings = PredictionConfig(task="embeddings")
    predictor = open_predictor(wanted.folder, embeddings, dtype="float32", **wanted.how)
    return [image_maps(predictor.subject.pretrained, predictor.reader, wanted.image)]
