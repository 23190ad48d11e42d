"""The attention weights of a trained model on a text or an image, with token names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from jaxformer.checks import check_argument
from jaxformer.errors import ArgumentError
from jaxformer.generation.api import generate
from jaxformer.lab.selection import selected
from jaxformer.pretrained.inspection.tokens import check_fits, open_tokenizer
from jaxformer.pretrained.model import Pretrained, check_pretrained
from jaxformer.pretrained.outputs import forward
from jaxformer.pretrained.prediction.image_patches import image_inputs
from jaxformer.pretrained.prediction.image_reader import ImageReader

_SELF, _CROSS = "self-attention", "cross-attention"


@dataclass(frozen=True)
class PatchGrid:
    """The image whose patches are keys."""

    pixels: np.ndarray
    """float32 `[height, width, channels]` in [0, 1], after preprocessing."""
    rows: int
    columns: int
    prefix: int
    """Number of tokens before the patches, such as the class token."""

    @property
    def rgb(self) -> np.ndarray:
        """The pixels with three channels, float32 `[height, width, 3]`."""
        pixels = self.pixels
        return np.repeat(pixels, 3, axis=-1) if pixels.shape[-1] == 1 else pixels[..., :3]


@dataclass(frozen=True)
class AttentionMaps:
    """The weights of all heads of a kind of attention; rows are queries, columns keys."""

    name: str
    """The kind: "self-attention", "encoder self-attention", "cross-attention", ..."""
    weights: np.ndarray
    """float32 `[layers, heads, T, S]`."""
    queries: list[str]
    """The T query tokens."""
    keys: list[str]
    """The S key tokens."""
    causal: bool
    layers: tuple[int, ...]
    """The number of each layer."""
    heads: tuple[int, ...]
    """The number of each head."""
    grid: PatchGrid | None = None
    """The image, if keys are patches."""
    times: tuple[bool, bool] = (False, False)
    """Whether queries, and whether keys, are times instead of tokens."""

    def select(
        self, layers: Sequence[int] | None = None, heads: Sequence[int] | None = None
    ) -> "AttentionMaps":
        """Returns the maps of some layers and heads."""
        rows = selected("layers", layers, self.layers)
        columns = selected("heads", heads, self.heads)
        return replace(
            self,
            weights=self.weights[np.ix_(rows, columns)],
            layers=tuple(self.layers[row] for row in rows),
            heads=tuple(self.heads[column] for column in columns),
        )


def text_maps(
    pretrained: Pretrained, text: str, target: str | None = None, *, max_new_tokens: int = 32
) -> list[AttentionMaps]:
    """Returns the attention weights of a model on a text."""
    check_pretrained("pretrained", pretrained)
    config = pretrained.config
    if "images" in config.required:
        raise ArgumentError("text: the model reads images; give an image instead")
    tokenizer = open_tokenizer(pretrained)
    tokens = tokenizer.tokens(text)
    if not tokens:
        raise ArgumentError(f"text = {text!r}: must have at least one token")
    check_fits("text", tokens, config.position)
    labels = [token.shown(text) for token in tokens]
    inputs = _row("input_ids", [token.id for token in tokens])
    if not config.is_encoder_decoder:
        check_argument(
            "target", target, target is None, "left out: the model has no separate decoder"
        )
        found = forward(pretrained, inputs, output_attentions=True)
        return _maps(found, {"attentions": (_SELF, labels, labels, config.causal)})
    if target is None:
        read = _written(pretrained, inputs["input_ids"][0], max_new_tokens)
    else:
        read = _shifted(pretrained, [token.id for token in tokenizer.tokens(target)])
    check_fits("target", read, config.decoder_position)
    inputs |= _row("decoder_input_ids", read)
    found = forward(pretrained, inputs, output_attentions=True)
    rust = tokenizer.rust
    decoded = (rust.decode([id_], skip_special_tokens=False).strip() for id_ in read)
    names = [text or rust.id_to_token(id_) for text, id_ in zip(decoded, read, strict=True)]
    kinds = {
        "encoder_attentions": (f"encoder {_SELF}", labels, labels, False),
        "decoder_attentions": (f"decoder {_SELF}", names, names, True),
        "cross_attentions": (_CROSS, names, labels, False),
    }
    return _maps(found, kinds)


def image_maps(pretrained: Pretrained, reader: ImageReader, file: str | Path) -> AttentionMaps:
    """Returns the attention weights of a model on an image."""
    check_pretrained("pretrained", pretrained)
    config = pretrained.config
    if "images" not in config.required:
        raise ArgumentError("image: the model reads text; give a text instead")
    pixels = reader.pixels(Path(file))
    inputs = image_inputs([pixels], config)
    # The image size may differ from that of the training images.
    sizes = zip(pixels.shape[:2], config.patch_size, strict=True)
    rows, columns = (count // size for count, size in sizes)
    names = [*("[CLS]", "[DIST]")[: config.num_prefix]]
    names += [f"patch {row},{column}" for row in range(rows) for column in range(columns)]
    found = forward(pretrained, inputs, output_attentions=True)
    (maps,) = _maps(found, {"attentions": (_SELF, names, names, False)})
    shown = (pixels - pixels.min()) / max(float(np.ptp(pixels)), 1e-6)
    return replace(maps, grid=PatchGrid(shown, rows, columns, config.num_prefix))


def _maps(
    outputs: Mapping[str, np.ndarray], kinds: Mapping[str, tuple[str, list[str], list[str], bool]]
) -> list[AttentionMaps]:
    found = []
    for output, (name, queries, keys, causal) in kinds.items():
        if output in outputs:
            weights = np.asarray(outputs[output], np.float32)[:, 0]
            layers, heads = (tuple(range(size)) for size in weights.shape[:2])
            found.append(AttentionMaps(name, weights, queries, keys, causal, layers, heads))
    return found


def _row(name: str, ids: Sequence[int]) -> dict[str, np.ndarray]:
    return {name: np.array(ids, np.int32)[None]}


def _written(pretrained: Pretrained, ids: np.ndarray, count: int) -> list[int]:
    """Returns the decoder inputs of greedy decoding, beginning with the start token."""
    options = {"do_sample": False, "num_beams": 1, "max_new_tokens": count}
    found = generate(pretrained, ids, **options)
    new = int(np.count_nonzero(found["log_probs"][0]))  # 0 at padding
    sequence = found["sequences"][0]
    given = len(sequence) - found["log_probs"].shape[1]
    return sequence[: max(given + new - 1, 1)].tolist()  # the last token is never an input


def _shifted(pretrained: Pretrained, ids: Sequence[int]) -> list[int]:
    """Returns the decoder inputs for these targets, beginning with the start token."""
    checkpoint = pretrained.checkpoint
    targets = jnp.asarray(ids, jnp.int32)[None]
    return np.asarray(checkpoint.model_format.shift(targets, checkpoint.hf_config))[0].tolist()
