"""The programs of a model as StableHLO: forward, and prefill and decode of a decoder."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from jaxformer.engines.text_models import keeps_cache, text_inputs
from jaxformer.errors import ConfigError
from jaxformer.models.decoder import Decoder
from jaxformer.nn.cache import CacheShape
from jaxformer.pretrained.model import Pretrained

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms that the programs run on."""
_LONGEST = 1024


def programs_of(pretrained: Pretrained) -> dict[str, export.Exported]:
    """Returns the programs of a model, for any number of rows and tokens.

    forward(weights, tokens `[B, T]`, mask `[B, T]`) gives logits `[B, T, V]`, or the last hidden
    states of a body; that of an encoder-decoder also reads the decoder's tokens `[B, T']`.
    prefill(weights, tokens `[B, T]`, lengths `[B]`), with padding on the right, gives the logits
    `[B, V]` after each row and the cache; decode(weights, tokens `[B]`, cache) those after one more
    token.

    Raises:
        ConfigError: The model depends on the number of rows or tokens.
    """
    try:
        found = {"forward": _forward(pretrained)}
        if keeps_cache(pretrained.config):
            found |= _with_cache(pretrained)
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ConfigError(
            "--format stablehlo: the program depends on the number of rows or tokens: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return found


def capacity(pretrained: Pretrained) -> int:
    """Returns how many tokens the cache holds: the positions of the model, at most 1,024."""
    values = pretrained.checkpoint.hf_config.values
    sizes = (pretrained.config.position.max_length, values.get("max_position_embeddings"), _LONGEST)
    return min(size for size in sizes if size)


def _forward(pretrained: Pretrained) -> export.Exported:
    inputs, limit = text_inputs(pretrained.config), pretrained.config.position.max_length
    names = ["t", "u"][: len(inputs) - 1]
    bounds = [f"{name} <= {limit}" for name in names if limit is not None]
    rows, *lengths = export.symbolic_shape(", ".join(["b", *names]), constraints=bounds)
    shapes = [(rows, lengths[0]), *((rows, length) for length in lengths)]

    def forward(weights, *arrays):
        found = pretrained._outputs(weights, dict(zip(inputs, arrays, strict=True)))
        return found["logits" if "logits" in found else "last_hidden_state"]

    return _exported(pretrained, forward, *shapes)


def _with_cache(pretrained: Pretrained) -> dict[str, export.Exported]:
    size = capacity(pretrained)

    def empty(rows: int) -> Any:
        shape = CacheShape(rows, size, size, "float32")
        return pretrained.model.init_cache(shape)

    one, two = (jax.eval_shape(lambda rows=rows: empty(rows)) for rows in (1, 2))
    leaves, structure = jax.tree.flatten(one)
    others = jax.tree.leaves(two)

    def shapes(rows: Any) -> list[tuple[Any, ...]]:
        return [
            tuple(rows if a != b else a for a, b in zip(x.shape, y.shape, strict=True))
            for x, y in zip(leaves, others, strict=True)
        ]

    def stepped(model: Decoder, tokens, cache, lengths=None):
        hidden, cache = model.step(tokens, cache, count=lengths)
        if lengths is not None:
            hidden = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
        return model.logits(hidden)[:, 0], tuple(jax.tree.leaves(cache))

    def prefill(weights, tokens, lengths):
        model = pretrained.abstract_model.module(weights)
        start = jax.tree.leaves(model.init_cache(CacheShape(1, size, size, "float32")))
        sizes = shapes(tokens.shape[0])
        pairs = zip(start, sizes, strict=True)
        cache = [jnp.broadcast_to(array, shape) for array, shape in pairs]
        return stepped(model, tokens, jax.tree.unflatten(structure, cache), lengths)

    def decode(weights, tokens, cache):
        model = pretrained.abstract_model.module(weights)
        return stepped(model, tokens[:, None], jax.tree.unflatten(structure, cache))

    rows, tokens = export.symbolic_shape("b, t", constraints=[f"t <= {size}"])
    first = _exported(pretrained, prefill, (rows, tokens), (rows,))
    (rows,) = export.symbolic_shape("b")
    pairs = zip(shapes(rows), leaves, strict=True)
    cache = tuple(jax.ShapeDtypeStruct(shape, leaf.dtype) for shape, leaf in pairs)
    return {"prefill": first, "decode": _exported(pretrained, decode, (rows,), cache)}


def _exported(pretrained: Pretrained, program: Callable, *inputs: Any) -> export.Exported:
    """Exports a program of the weights and of int32 arrays with these shapes."""
    parameters = pretrained.parameters
    weights = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in parameters.items()}
    specs = [
        shape
        if any(isinstance(each, jax.ShapeDtypeStruct) for each in shape)
        else jax.ShapeDtypeStruct(shape, jnp.int32)
        for shape in inputs
    ]
    return export.export(jax.jit(program), platforms=PLATFORMS)(weights, *specs)
