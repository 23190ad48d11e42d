"""Static properties of arrays: assertions about axes and dtypes, and shardings.

Axes are named by the letters of the package docstring; numbers are checked by range.

Shapes and dtypes are checked for every array while tracing, so the compiled program does not
change. Values are checked only for Python numbers and NumPy arrays, never for a `jax.Array`, since
they are unknown while tracing and reading them would block on the device.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, PartitionSpec

from jaxformer.checks import Rule, at_least, check_argument, one_of, plain
from jaxformer.errors import ArgumentError, ConfigError

# The manual mesh axis of model replicas, or None.
_COPIES = jax.make_user_context(None)


def assert_axes(
    known: Mapping[str, int] | None = None, /, **arrays: tuple[Any, str]
) -> dict[str, int]:
    """Asserts that arrays have the documented axes; returns the size of each letter.

    ``assert_axes(query=(query, "B T N H"), key=(key, "B S K H"))``: a letter stands for the same
    size in all arrays of a call, that in `known` or of the first array with it. ``1`` is that size,
    ``B/1`` is B or 1, ``_`` is any size, and a leading ``...`` any number of axes.

    Returns:
        The sizes.

    Raises:
        AssertionError: Names the argument, its shape, the axes it must have and their sizes.
    """
    sizes = dict(known or {})
    for name, (array, axes) in arrays.items():
        letters = axes.split()
        shape = getattr(array, "shape", None)
        needed = [key for key in (letter.split("/")[0] for letter in letters) if key in sizes]
        listed = ", ".join(f"{key} = {sizes[key]}" for key in dict.fromkeys(needed))
        where = f" with {listed}" if needed else ""
        found = f"type {type(array).__name__}" if shape is None else f"shape {tuple(shape)}"
        message = f"{name} has {found}: must be an array [{', '.join(letters)}]{where}"
        if shape is None:
            raise AssertionError(message)
        try:
            chex.assert_shape(array, tuple(_expected(letter, sizes) for letter in letters))
        except AssertionError:
            raise AssertionError(message) from None
        named = letters[1:] if letters[:1] == ["..."] else letters
        trailing = shape[len(shape) - len(named) :]
        for letter, size in zip(named, trailing, strict=True):
            if letter.isalpha():
                sizes.setdefault(letter, size)
    return sizes


def _expected(letter: str, sizes: Mapping[str, int]) -> Any:
    """Returns the expectation for one axis in chex's format."""
    if letter == "...":
        return ...
    letter, _, alternative = letter.partition("/")
    size = int(letter) if letter.isdecimal() else sizes.get(letter)
    return {size, int(alternative)} if alternative and size is not None else size


def assert_floating(**arrays: Any) -> None:
    """Asserts that arrays hold floating-point numbers."""
    _assert_dtypes(arrays, "floating-point numbers", jnp.floating)


def assert_bool(**arrays: Any) -> None:
    """Asserts that arrays hold booleans."""
    _assert_dtypes(arrays, "bool", jnp.bool_)


def assert_numbers(**arrays: Any) -> None:
    """Asserts that arrays hold real numbers or booleans."""
    _assert_dtypes(arrays, "numbers", jnp.floating, jnp.integer, jnp.bool_)


def assert_integers(**arrays: Any) -> None:
    """Asserts that arrays hold integers, and that NumPy arrays fit in int32."""
    _assert_dtypes(arrays, "integers", jnp.integer)
    limits = np.iinfo(np.int32)
    for name, array in arrays.items():
        if isinstance(array, np.ndarray) and not np.can_cast(array.dtype, np.int32):
            _check_values(name, array, limits.min, limits.max)


def assert_ids(size: int, /, **arrays: Any) -> None:
    """Asserts that arrays hold integers; NumPy arrays, indices of a table with `size` rows."""
    _assert_dtypes(arrays, "integers", jnp.integer)
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            _check_values(name, array, 0, size - 1)


def check_result(part: object, result: Any, like: jax.Array | jax.ShapeDtypeStruct) -> None:
    """Raises ConfigError unless the result of a model part has the shape and dtype of `like`."""
    found = (getattr(result, "shape", None), getattr(result, "dtype", None))
    if found == (like.shape, like.dtype):
        return
    name = type(part).__name__
    returned = f"a {type(result).__name__}"
    if None not in found:
        returned = f"{found[1]} {list(found[0])}"
    advice = "; convert it with .astype(x.dtype)" if found[0] == like.shape else ""
    raise ConfigError(
        f"{name} returned {returned}: must be {like.dtype} {list(like.shape)}{advice}"
    )


def assert_keys(**keys: Any) -> None:
    """Raises ArgumentError unless arguments are single random keys."""
    for name, key in keys.items():
        dtype = getattr(key, "dtype", np.dtype(object))
        rank = np.ndim(key)
        typed = jnp.issubdtype(dtype, jax.dtypes.prng_key) and rank == 0
        raw = dtype == jnp.uint32 and rank == 1
        check_argument(name, key, typed or raw, "one random key, such as jax.random.key(0)")


def _assert_dtypes(arrays: Mapping[str, Any], expected: str, *kinds: Any) -> None:
    for name, array in arrays.items():
        dtype = getattr(array, "dtype", None)
        if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
            found = f"type {type(array).__name__}" if dtype is None else f"dtype {dtype}"
            raise AssertionError(f"{name} has {found}: must be an array of {expected}")


def _check_values(name: str, array: np.ndarray, least: int, most: int) -> None:
    if array.size and not least <= array.min() <= array.max() <= most:
        raise ArgumentError(
            f"{name} holds {array.min()} to {array.max()}: must be integers from {least} to {most}"
        )


def attended(name: str, array: jax.Array) -> jax.Array:
    """Converts the attention mask in argument `name`, bool or integers 1 and 0, to bool."""
    if jnp.issubdtype(array.dtype, jnp.bool_):
        return array
    if jnp.issubdtype(array.dtype, jnp.floating):
        raise ArgumentError(
            f"{name} has dtype {array.dtype}: must be bool, True = attend; use {name} == 0 for a "
            f"mask of 0 and -inf that is added to the logits, or {name} > 0 if 1 stands for True"
        )
    assert_integers(**{name: array})
    if isinstance(array, np.ndarray) and not np.isin(array, (0, 1)).all():
        raise ArgumentError(
            f"{name} holds {array.min()} to {array.max()}: must be bool, or 1 = attend and 0"
        )
    return array.astype(bool)


def check_numbers(**numbers: tuple[Any, Rule]) -> None:
    """Checks scalars; ``eps=(eps, NOT_NEGATIVE)``. Of a `jax.Array` only shape and dtype count."""
    for name, (value, rule) in numbers.items():
        if isinstance(value, jax.Array):
            kinds = jnp.floating, jnp.integer
            fits = value.ndim == 0 and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
        else:
            fits = rule.allows(plain(value))
        check_argument(name, value, fits, rule.expected)


def static(name: str, value: Any, rule: Rule) -> Any:
    """Returns a scalar that must be known while tracing, and follow `rule`, as a Python number."""
    known = not isinstance(value, jax.core.Tracer)
    check_argument(name, value, known, f"{rule.expected}, known while tracing")
    value = plain(value)
    check_argument(name, value, rule.allows(value), rule.expected)
    return value


def static_pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    """Returns the (rows, columns) of an image or a grid, at least 1, as Python's integers."""
    two = isinstance(sizes, Sequence | np.ndarray) and len(sizes) == 2
    check_argument(name, sizes, two, "two integers, (rows, columns)")
    rows, columns = (static(name, size, at_least(1)) for size in sizes)
    return rows, columns


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raises ArgumentError unless the value of argument `name` is one of the choices."""
    rule = one_of(choices)
    check_argument(name, value, rule.allows(value), rule.expected)


def on_mesh(mesh: Mesh | AbstractMesh | None) -> AbstractContextManager:
    """Context manager to run or trace programs on a mesh; None means a single device."""
    if mesh is None:
        return nullcontext()
    abstract = isinstance(mesh, AbstractMesh)
    return jax.sharding.use_abstract_mesh(mesh) if abstract else jax.set_mesh(mesh)


def replica_rows(axis: str) -> AbstractContextManager:
    """Declares that arrays contain the rows of one of the model replicas along a mesh axis."""
    # Functions of the row index (dropout) then use the index among the contiguous rows of all.
    return _COPIES(axis)


def first_row(rows: int) -> jax.Array:
    """Returns the uint32 index of the first of these rows among the rows of all model replicas."""
    axis = _COPIES.value
    copy = 0 if axis is None else jax.lax.axis_index(axis)
    return jnp.uint32(rows) * jnp.asarray(copy, jnp.uint32)


def is_manually_sharded() -> bool:
    """Whether arrays contain the rows of one model replica, see `replica_rows`."""
    return _COPIES.value is not None


def spec_of(x: jax.Array) -> PartitionSpec | None:
    """Returns the partition spec in the type of `x`, one entry per axis; None without a mesh."""
    # Where mesh axes are not explicit the compiler decides, or, inside `shard_map`, the array is
    # the shard of one device.
    sharding = jax.typeof(x).sharding
    return sharding.spec if sharding.mesh.explicit_axes else None


def platform() -> str:
    """Returns the platform that the computation is traced for: "cpu", "gpu" or "tpu"."""
    # That of the current mesh may differ from the local one in ahead-of-time compilation.
    device = jax.sharding.get_abstract_mesh().abstract_device
    # jax 0.10.0 does not expose the platform of an abstract mesh's devices.
    return getattr(device, "platform", None) or jax.default_backend()


def device_kind() -> str:
    """Returns the kind of device that the computation is traced for, such as "TPU v6 lite"."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return getattr(device, "device_kind", None) or jax.devices()[0].device_kind


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec as a tuple."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def without(entry: str | tuple[str, ...] | None, used: set[str]) -> tuple[str, ...] | str | None:
    """Returns one entry of a spec without the mesh axes in `used`."""
    kept = tuple(axis for axis in mesh_axes(entry) if axis not in used)
    return kept[0] if len(kept) == 1 else kept or None


def place(x: jax.Array, spec: PartitionSpec | None) -> jax.Array:
    """Reshards `x` to `spec`; None (no mesh) leaves it unchanged."""
    return x if spec is None else jax.sharding.reshard(x, spec)


def gathered(parameter: jax.Array, x: jax.Array, contract: int = 0) -> jax.Array:
    """Gathers a parameter along the mesh axes that shard `x`, except its last `contract` axes."""
    # The all-gather of fully sharded data parallelism, whose transpose is a reduce-scatter.
    if (spec := spec_of(parameter)) is None:
        return parameter
    batched = {axis for entry in spec_of(x)[: x.ndim - contract] for axis in mesh_axes(entry)}
    return place(parameter, PartitionSpec(*(without(entry, batched) for entry in spec)))


def per_device(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Applies a function to the rows and heads of each device.

    In an explicit mesh JAX refuses some operations on sharded axes, such as a reshape that splits
    or merges heads, because the sharding of the result is ambiguous. Within `function` arrays are
    not sharded. It must treat rows and heads separately: `per_device(lambda x: x[:, :, ::2],
    query)`.

    Args:
        function: Maps arrays to an array whose leading axes are sharded like those of the first
            argument.
        *arrays: Activations `[B, T, N, H]`, or arrays with the batch and head axes at the same
            positions.

    Returns:
        The result, sharded like the first array; without a mesh `function(*arrays)`.
    """
    specs = tuple(spec_of(x) for x in arrays)
    if specs[0] is None:
        return function(*arrays)
    entries = list(specs[0])
    while entries and entries[-1] is None:
        entries.pop()
    sharded = PartitionSpec(*entries)
    return jax.shard_map(function, in_specs=specs, out_specs=sharded, check_vma=False)(*arrays)


def on_tokens(x: jax.Array) -> jax.Array:
    """Shards the tokens of `[B, T, ...]` over the mesh axis "sequence", if it divides T."""
    if (spec := spec_of(x)) is None or spec[1] is not None:
        return x
    parts = dict(jax.typeof(x).sharding.mesh.shape).get("sequence", 1)
    if parts == 1 or x.shape[1] % parts:
        return x
    return place(x, PartitionSpec(spec[0], "sequence", *spec[2:]))


def whole_rows(x: jax.Array) -> jax.Array:
    """Gathers the tokens of activations `[B, T, ...]` that `on_tokens` has sharded."""
    spec = spec_of(x)
    if spec is None or spec[1] is None:
        return x
    return place(x, PartitionSpec(spec[0], None, *spec[2:]))


def merge_rows(x: jax.Array, rows: int) -> jax.Array:
    """Returns `[R, T, ...]` as `[rows, R T / rows, ...]`, with the same sharding."""
    shape = (rows, x.shape[0] * x.shape[1] // rows, *x.shape[2:])
    return x if shape == x.shape else jax.lax.reshape(x, shape, out_sharding=spec_of(x))
