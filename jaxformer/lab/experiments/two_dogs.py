"""Without positions, identical tokens have identical outputs, such as two dogs in a sentence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ArgumentError, DataError
from jaxformer.functional import NoPosition
from jaxformer.hub.inputs import checked_inputs
from jaxformer.lab.drawing import canvas, heat_map
from jaxformer.lab.experiments.report import Report
from jaxformer.models.model import Model, ModelConfig
from jaxformer.pretrained.inspection.tokens import check_fits, open_tokenizer
from jaxformer.pretrained.model import Pretrained, check_pretrained, described_by

MOST_TOKENS = 40
"""Maximum number of tokens in the figure."""


class TwinOutputs(NamedTuple):
    """The distances between the outputs of the tokens of a text.

    Distances are float32 `[T, T]`: |h_i - h_j|, divided by the root mean square of |h|.
    """

    pieces: list[str]
    """The tokens as text."""
    pairs: list[tuple[int, int]]
    """The positions of identical tokens."""
    with_positions: np.ndarray
    """Distances with the trained model; every token sees all others."""
    without: np.ndarray
    """Distances without positional information; every token sees all others."""
    causal: np.ndarray | None
    """Distances without positional information but with the causal mask of a decoder, or None."""

    def largest(self, distances: np.ndarray) -> float:
        """Returns the largest distance between identical tokens."""
        return max(float(distances[pair]) for pair in self.pairs)


def without_positions(config: ModelConfig) -> ModelConfig:
    """Returns a configuration with its positional schemes switched off."""
    changes = {"position": NoPosition(), "window_position": None, "relative_position": None}
    if config.is_encoder_decoder:
        changes["decoder_position"] = NoPosition()
    return replace(config, **changes)


def twin_outputs(pretrained: Pretrained, text: str) -> TwinOutputs:
    r"""Compares the outputs of identical tokens with and without positions.

    Attention without positions is equivariant: for a permutation P of the tokens

    .. math:: f(P X) = P f(X), \qquad \text{so}\ x_i = x_j \Rightarrow f(X)_i = f(X)_j

    A decoder's causal mask also distinguishes positions, since each token sees only earlier ones.
    Here a decoder therefore sees the whole text as a prefix; `causal` has the distances with the
    mask.
    """
    check_pretrained("pretrained", pretrained)
    tokens = open_tokenizer(pretrained).tokens(text)
    check_fits("text", tokens, pretrained.config.position)
    ids = np.array([token.id for token in tokens])
    places = range(len(ids))
    pairs = [(i, j) for i in places for j in places if i < j and ids[i] == ids[j]]
    if not pairs:
        raise ArgumentError(
            f"text = {text!r}: must contain a token twice; its tokens are "
            f"{' '.join(token.piece for token in tokens)}"
        )
    inputs = checked_inputs({"input_ids": ids[None]}, pretrained.config)["input_ids"]
    plain = replace(
        pretrained,
        config=without_positions(pretrained.config),
        describe=described_by(pretrained.checkpoint),
    )
    causal = pretrained.config.causal
    return TwinOutputs(
        [token.shown(text) for token in tokens],
        pairs,
        _distances(pretrained, inputs, sees_all=True),
        _distances(plain, inputs, sees_all=True),
        _distances(plain, inputs, sees_all=False) if causal else None,
    )


def two_dogs_report(pretrained: Pretrained, text: str) -> Report:
    """Reports whether a model distinguishes identical tokens without its positional scheme."""
    found = twin_outputs(pretrained, text)
    if len(found.pieces) > MOST_TOKENS:
        raise ArgumentError(
            f"text: must have at most {MOST_TOKENS} tokens for the picture, and has "
            f"{len(found.pieces)}; give a shorter one"
        )
    scheme = type(pretrained.config.position).__name__
    header = ["token", "first place", "second place", scheme, "no positions"]
    maps = [found.with_positions, found.without]
    if found.causal is not None:
        header.append("no positions, causal mask")
        maps.append(found.causal)
    rows = [
        [found.pieces[pair[0]], *pair, *(float(distances[pair]) for distances in maps)]
        for pair in found.pairs
    ]
    finding = (
        f"Without positions the outputs of identical tokens are equal to float precision: their "
        f"largest distance is {found.largest(found.without):.1g} of an output's length. With "
        f"{scheme} it is {found.largest(found.with_positions):.2g}."
    )
    if found.causal is not None:
        finding += (
            " A causal mask also distinguishes them, because a token sees only earlier ones: "
            f"{found.largest(found.causal):.2g}."
        )
    return Report(
        name="two-dogs",
        title="Without positions, identical tokens have identical outputs",
        setting=(
            f"The text {text!r}, through the model in {pretrained.folder}: as it was trained, with "
            "all tokens visible, and with its positional scheme switched off."
        ),
        finding=finding,
        header=header,
        rows=rows,
        figure=_draw(found, header[3:], maps),
    )


def _distances(pretrained: Pretrained, ids: jax.Array, sees_all: bool) -> np.ndarray:
    """Returns the distances between the outputs of the model's first stack."""

    def outputs(parameters, ids):
        model = pretrained.abstract_model.module(parameters)
        return _hidden(model, pretrained.config, ids, sees_all)[0].astype(jnp.float32)

    hidden_TD = np.asarray(jax.jit(outputs)(pretrained.parameters, ids))
    scale = np.sqrt(np.mean(np.sum(hidden_TD**2, axis=-1)))
    difference_TTD = hidden_TD[:, None] - hidden_TD[None]
    return np.linalg.norm(difference_TTD, axis=-1) / scale


def _hidden(model: Model, config: ModelConfig, ids: jax.Array, sees_all: bool) -> jax.Array:
    if config.is_encoder_decoder:
        return model.encode(ids)
    if config.causal:
        prefix = jnp.full(ids.shape[:1], ids.shape[1] if sees_all else 0)
        return model.hidden(ids, prefix=prefix)
    if "inputs" not in config.required:
        raise DataError("the model reads images, but this experiment needs a text model")
    return model.hidden(ids)


def _draw(found: TwinOutputs, names: Sequence[str], maps: Sequence[np.ndarray]):
    from matplotlib.patches import Rectangle

    side = max(3.2, 0.26 * len(found.pieces) + 1.2)
    size = (side * len(maps) + 0.8, side + 0.6)
    title = "Distance of the outputs of two tokens (black frames: identical tokens)"
    figure, (row,) = canvas(title, size, 1, len(maps))
    largest = max(distances.max() for distances in maps)
    places = np.arange(len(found.pieces))
    for axes, name, distances in zip(row, names, maps, strict=True):
        options = {"cmap": "viridis", "vmin": 0.0, "vmax": largest}
        image = heat_map(axes, distances, name, "", "", **options)
        axes.set_aspect("equal")
        axes.set_xticks(places, found.pieces, rotation=90, fontsize=8)
        axes.set_yticks(places, found.pieces, fontsize=8)
        looks = {"fill": False, "edgecolor": "black", "linewidth": 1.4}
        for i, j in found.pairs:
            for x, y in ((i, j), (j, i)):
                axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **looks))
    figure.colorbar(image, ax=row, label="distance / length of an output", shrink=0.8)
    return figure
