"""Trained positional parameters: a learned table, and T5's biases."""

import jax.numpy as jnp
import numpy as np

from jaxformer.errors import ConfigError
from jaxformer.functional import Learned, T5Bias, t5_bias
from jaxformer.lab.drawing import COLOURS, canvas, frame, heat_map
from jaxformer.lab.positions.compiled import sinusoidal_code
from jaxformer.lab.positions.section import Number, Picture, Section
from jaxformer.pretrained.model import Pretrained

_SUFFIX = "inputs.position_table"
_MOST_ROWS = 512


def trained_section(pretrained: Pretrained, name: str) -> Section:
    """Describes the learned tables and biases of a trained model."""
    pictures, numbers = [], []
    config = pretrained.config
    for path, array in pretrained.parameters.items():
        decodes = config.is_encoder_decoder and path.startswith("decoder")
        scheme = config.decoder_position if decodes else config.position
        if not (path.endswith(_SUFFIX) and isinstance(scheme, Learned | T5Bias)):
            continue
        table = np.asarray(array, np.float32)
        where = path.removesuffix(_SUFFIX).strip(".")
        draw = _table if isinstance(scheme, Learned) else _biases
        picture, found = draw(scheme, table, where)
        pictures.append(picture)
        numbers += found
    if not pictures:
        raise ConfigError(
            f"trained = {name!r}: must have a learned table of positions or T5's biases; it has "
            f"{type(config.position).__name__}, which has no parameters"
        )
    text = (
        "A table of positions is initialized randomly. The trained table shows what the model "
        "uses positions for.",
    )
    return Section(f"After training: {name}", text, pictures, numbers)


def similarity_by_distance(table: np.ndarray) -> np.ndarray:
    """Returns the mean cosine of two rows of a table `[T, D]` by their distance, `[T]`."""
    cosines = _cosines(table)
    return np.array([np.diagonal(cosines, distance).mean() for distance in range(len(table))])


def bias_by_distance(scheme: T5Bias, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns distances (key minus query), int `[E]`, and each head's bias at them, `[E, N]`."""
    reach = scheme.max_distance + scheme.max_distance // 4
    keys = np.arange(2 * reach + 1 if scheme.bidirectional else reach + 1)
    places = jnp.array([[reach]]), jnp.asarray(keys)[None]
    options = {"bidirectional": scheme.bidirectional, "max_distance": scheme.max_distance}
    bias = t5_bias(jnp.asarray(table), *places, **options)
    return keys - reach, np.asarray(bias)[0, :, 0].T


def _cosines(table: np.ndarray) -> np.ndarray:
    unit = table / np.maximum(np.linalg.norm(table, axis=-1, keepdims=True), 1e-12)
    return unit @ unit.T


def _table(scheme: Learned, table: np.ndarray, where: str) -> tuple[Picture, list[Number]]:
    rows = table[:_MOST_ROWS]
    length, width = rows.shape
    title = f"The learned table ({where}) after training: {length} positions x {width} channels"
    figure, ((left, right),) = canvas(title, (10.5, 4.2), 1, 2)
    options = {"bar": "cosine", "cmap": "RdBu_r", "vmin": -1, "vmax": 1}
    heat_map(left, _cosines(rows), "Rows", "position n", "position m", **options)
    options = {"model_dim": width + width % 2, "theta": 1e4, "layout": "interleaved"}
    compared = {
        "learned": rows,
        "at random, as before training": np.random.default_rng(0).normal(size=rows.shape),
        "sinusoidal": np.asarray(sinusoidal_code(jnp.arange(length), **options)),
    }
    for colour, (label, values) in zip(COLOURS, compared.items(), strict=False):
        right.plot(similarity_by_distance(values), color=colour, label=label, linewidth=1.3)
    frame(right, "By distance, mean over positions", "distance m - n (positions)", "cosine")
    right.legend(fontsize=8, loc="upper center")
    found = similarity_by_distance(rows)
    numbers = [
        Number("learned", f"mean cosine at distance {distance}", where, float(found[distance]))
        for distance in (1, 2, 8, 32)
        if distance < length
    ]
    caption = (
        "Where the curve is above that of a random table, training has made near positions "
        "similar: the model has no other information on the order of positions."
    )
    return Picture(f"trained-{where.replace('.', '-')}-table", figure, caption), numbers


def _biases(scheme: T5Bias, table: np.ndarray, where: str) -> tuple[Picture, list[Number]]:
    distances, bias = bias_by_distance(scheme, table)
    title = f"T5's biases ({where}) after training: {bias.shape[1]} heads"
    figure, ((left, right),) = canvas(title, (10.5, 4.2), 1, 2)
    limit = float(np.abs(bias).max()) or 1.0
    extent = (distances[0] - 0.5, distances[-1] + 0.5, bias.shape[1] - 0.5, -0.5)
    options = {"bar": "added to the score", "cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    x = "key position - query position"
    heat_map(left, bias.T, "Each head", x, "head", extent=extent, **options)
    left.locator_params(axis="y", integer=True)
    for head in range(bias.shape[1]):
        right.plot(distances, bias[:, head], linewidth=1, alpha=0.7)
    frame(right, "A line for each head", x, "added to the score")
    near = bias[np.abs(distances) == 1].mean(0)
    far = bias[distances == distances[0]][0]
    numbers = [
        Number("t5", "bias at distance 1 less that of far keys", f"{where}, head {head}", value)
        for head, value in enumerate((near - far).tolist())
    ]
    caption = (
        "A head whose bias falls with the distance reads near tokens, one whose bias rises reads "
        "far ones, and a flat one reads only by content."
    )
    return Picture(f"trained-{where.replace('.', '-')}-bias", figure, caption), numbers
