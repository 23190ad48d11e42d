"""The programs of a model as StableHLO: forward and, for generation, prefill and decode."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from jaxformer.engines.text_models import keeps_cache, source_inputs, text_inputs
from jaxformer.errors import ConfigError, first_line
from jaxformer.hub.families import family_of
from jaxformer.models.decoder import GenerativeModel
from jaxformer.models.model import ModelConfig
from jaxformer.nn.cache import CacheShape
from jaxformer.pretrained.model import Pretrained

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms of the programs."""
_LONGEST = 1024


def programs_of(pretrained: Pretrained) -> dict[str, export.Exported]:
    """Returns the programs of a model, for any number of rows and tokens.

    The source is tokens `[B, T]` with their mask `[B, T]` or, for an encoder-decoder of speech, a
    spectrogram `[B, M, frames]`.

    forward(weights, source) returns logits `[B, T, V]`, or the last hidden states without a head;
    for an encoder-decoder it also takes the decoder's tokens `[B, U]`. prefill(weights, tokens `[B,
    T]`, lengths `[B]`), with padding on the right, returns the logits `[B, V]` after each row and
    the cache; for an encoder-decoder it takes the source, then the decoder's tokens.
    decode(weights, tokens `[B]`, cache) returns both after one more token.

    Raises:
        ConfigError: The program depends on the number of rows or tokens.
    """
    try:
        found = {"forward": _forward(pretrained)}
        if keeps_cache(pretrained.config):
            found["prefill"] = _prefill(pretrained)
            found["decode"] = _decode(pretrained, found["prefill"])
    except jax.errors.InconclusiveDimensionOperation as error:
        raise ConfigError(
            "--format stablehlo: the program depends on the number of rows or tokens: "
            f"{first_line(error)}"
        ) from error
    return found


def capacity(pretrained: Pretrained) -> int:
    """Returns the capacity of the cache in tokens: the model's positions, at most 1,024."""
    values = pretrained.checkpoint.hf_config.values
    limit = _decoder_limit(pretrained.config)
    return min(size for size in (limit, values.get("max_position_embeddings"), _LONGEST) if size)


def _decoder_limit(config: ModelConfig) -> int | None:
    """Returns the number of positions of the decoder or single stack; None if unlimited."""
    position = config.decoder_position if config.is_encoder_decoder else config.position
    return position.max_length


def _forward(pretrained: Pretrained) -> export.Exported:
    config, inputs = pretrained.config, text_inputs(pretrained.config)
    sizes = _sizes(config, _decoder_limit(config))
    specs = _source(config, sizes["b"], sizes.get("t"))
    if config.is_encoder_decoder:
        specs.append(_ids(sizes["b"], sizes["u"]))

    def forward(weights, *arrays):
        found = pretrained._outputs(weights, dict(zip(inputs, arrays, strict=True)))
        return found["logits" if "logits" in found else "last_hidden_state"]

    return _exported(pretrained, forward, *specs)


def _prefill(pretrained: Pretrained) -> export.Exported:
    config, size = pretrained.config, capacity(pretrained)
    sizes = _sizes(config, size)
    rows, length = sizes["b"], sizes.get("t")
    source = _source(config, rows, length) if config.is_encoder_decoder else []
    one, two = (_empty_cache(pretrained, size, number) for number in (1, 2))

    def prefill(weights, *arrays):
        *encoded, tokens, lengths = arrays
        model = pretrained.abstract_model.module(weights)
        start = _start(pretrained, model, size, 1, encoded)
        # The cache is made for one row, since its size must be a number. Encoder outputs have all
        # rows.
        cache = jax.tree.map(
            lambda array, a, b: jnp.broadcast_to(
                array,
                [
                    s if x == y else tokens.shape[0]
                    for s, x, y in zip(array.shape, a.shape, b.shape, strict=True)
                ],
            ),
            start,
            one,
            two,
        )
        hidden, cache = model.step(tokens, cache, count=lengths)
        hidden = jnp.take_along_axis(hidden, (lengths - 1)[:, None, None], axis=1)
        return model.logits(hidden)[:, 0], tuple(jax.tree.leaves(cache))

    tokens = _ids(rows, sizes.get("u", length))
    return _exported(pretrained, prefill, *source, tokens, _ids(rows))


def _decode(pretrained: Pretrained, prefill: export.Exported) -> export.Exported:
    """Exports the program that continues from a cache."""
    structure = jax.tree.structure(_empty_cache(pretrained, capacity(pretrained), 1))
    scope = export.SymbolicScope()
    logits, *cache = (
        jax.ShapeDtypeStruct(export.symbolic_shape(str(x.shape), scope=scope), x.dtype)
        for x in prefill.out_avals
    )

    def decode(weights, tokens, cache):
        model = pretrained.abstract_model.module(weights)
        hidden, cache = model.step(tokens[:, None], jax.tree.unflatten(structure, cache))
        return model.logits(hidden)[:, 0], tuple(jax.tree.leaves(cache))

    return _exported(pretrained, decode, _ids(logits.shape[0]), tuple(cache))


def _start(
    pretrained: Pretrained, model: GenerativeModel, size: int, rows: int, source: Any
) -> Any:
    """Returns the cache before the first token, after encoding the source, if any."""
    outputs = ()
    if source:
        inputs = dict(zip(source_inputs(pretrained.config), source, strict=True))
        outputs = family_of(pretrained.config).encode(model, pretrained.checkpoint, inputs)
    return model.init_cache(CacheShape(rows, size, size, "float32"), *outputs)


def _empty_cache(pretrained: Pretrained, size: int, rows: int) -> Any:
    """Returns the shapes of an empty cache for a number of rows."""
    config = pretrained.config
    source = _source(config, rows, 3) if config.is_encoder_decoder else []
    return jax.eval_shape(
        lambda *arrays: _start(pretrained, pretrained.model, size, rows, arrays), *source
    )


def _sizes(config: ModelConfig, most: int | None) -> dict[str, Any]:
    """Returns the symbolic sizes: b rows, t tokens of a source, u tokens of an answer."""
    limits: dict[str, int | None] = {"b": None}
    if "input_ids" in source_inputs(config):
        limits["t"] = config.position.max_length if config.is_encoder_decoder else most
    if config.is_encoder_decoder:
        limits["u"] = most
    bounds = [f"{name} <= {limit}" for name, limit in limits.items() if limit is not None]
    symbols = export.symbolic_shape(", ".join(limits), constraints=bounds)
    return dict(zip(limits, symbols, strict=True))


def _source(config: ModelConfig, rows: Any, length: Any) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of `source_inputs`."""
    if "input_ids" in source_inputs(config):
        return [_ids(rows, length), _ids(rows, length)]
    encoder = config.encoder
    shape = (rows, encoder.num_mel_bins, encoder.num_frames)
    return [jax.ShapeDtypeStruct(shape, jnp.float32)]


def _ids(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _exported(pretrained: Pretrained, program: Callable, *inputs: Any) -> export.Exported:
    """Exports a program that takes the weights and arrays of these shapes."""
    parameters = pretrained.parameters
    weights = {n: jax.ShapeDtypeStruct(x.shape, x.dtype) for n, x in parameters.items()}
    return export.export(jax.jit(program), platforms=PLATFORMS)(weights, *inputs)
