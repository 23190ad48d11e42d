"""What a trace knows of arrays: axes and dtypes, which are asserted, and how they are sharded.

Arrays are checked by the letters of the package docstring, numbers by their range.

Shapes and dtypes are checked for every array. A trace knows them, so the compiled program does not
change. Values are checked only on the host, for Python numbers and NumPy arrays, never for a
`jax.Array`: a trace does not have them, and reading them would wait for a device.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from jaxformer.checks import Rule, at_least, check_argument, one_of, plain
from jaxformer.errors import ArgumentError, ConfigError

# The mesh axis along which a program is written for each copy of the model; None: for all of them.
_COPIES = jax.make_user_context(None)


def assert_axes(
    known: Mapping[str, int] | None = None, /, **arrays: tuple[Any, str]
) -> dict[str, int]:
    """Asserts that arrays have the axes that a function documents.

    A letter stands for the same size in all arrays of a call and takes its size from the first
    that has it. ``1`` is that size, ``B/1`` is B or 1, ``_`` is any size, and a leading ``...``
    any number of axes.

    Example:
      ``sizes = assert_axes(query=(query, "B T N H"), key=(key, "B S K H"))``

    Args:
        known: Sizes of letters that no array gives.
        **arrays: Each argument's name, with its array and the letters of its axes.

    Returns:
        The size of each letter.

    Raises:
        AssertionError: Names the argument, its shape, the axes it must have and their sizes.
    """
    sizes = dict(known or {})
    for name, (array, axes) in arrays.items():
        letters = axes.split()
        shape = getattr(array, "shape", None)
        needed = {
            key: sizes[key] for key in (letter.split("/")[0] for letter in letters) if key in sizes
        }
        where = (
            f" with {', '.join(f'{key} = {size}' for key, size in needed.items())}"
            if needed
            else ""
        )
        found = f"shape {tuple(shape)}" if shape is not None else f"type {type(array).__name__}"
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
    """What chex compares the size of one axis with."""
    if letter == "...":
        return ...
    letter, _, alternative = letter.partition("/")
    size = int(letter) if letter.isdecimal() else sizes.get(letter)
    return {size, int(alternative)} if alternative and size is not None else size


def assert_floating(**arrays: Any) -> None:
    """Asserts that arrays hold floating-point numbers.

    Raises:
        AssertionError: Names the argument and its dtype.
    """
    for name, array in arrays.items():
        _assert_dtype(name, array, jnp.floating, "floating-point numbers")


def assert_bool(**arrays: Any) -> None:
    """Asserts that arrays hold booleans.

    Raises:
        AssertionError: Names the argument and its dtype.
    """
    for name, array in arrays.items():
        _assert_dtype(name, array, jnp.bool_, "bool")


def assert_numbers(**arrays: Any) -> None:
    """Asserts that arrays hold real numbers or booleans.

    Raises:
        AssertionError: Names the argument and its dtype.
    """
    for name, array in arrays.items():
        _assert_dtype(name, array, (jnp.floating, jnp.integer, jnp.bool_), "numbers")


def assert_integers(**arrays: Any) -> None:
    """Asserts that arrays hold integers, and that NumPy arrays fit in int32.

    Raises:
        AssertionError: Names the argument and its dtype.
        ArgumentError: Names the argument and what it holds.
    """
    for name, array in arrays.items():
        _assert_dtype(name, array, jnp.integer, "integers")
        if isinstance(array, np.ndarray) and not np.can_cast(array.dtype, np.int32):
            limits = np.iinfo(np.int32)
            _check_values(name, array, limits.min, limits.max)


def assert_ids(size: int, /, **arrays: Any) -> None:
    """Asserts that arrays hold integers, and that NumPy arrays are indices of a table.

    Args:
        size: Rows of the table.
        **arrays: The ids, by their names.

    Raises:
        AssertionError: Names the argument and its dtype.
        ArgumentError: Names the argument and what it holds.
    """
    for name, array in arrays.items():
        _assert_dtype(name, array, jnp.integer, "integers")
        if isinstance(array, np.ndarray):
            _check_values(name, array, 0, size - 1)


def check_result(part: object, result: Any, like: jax.Array | jax.ShapeDtypeStruct) -> None:
    """Checks the shape and dtype of what a part of a model returns.

    Args:
        part: The part, of which the message has the name of the class.
        result: What it returned.
        like: What has the shape and dtype that it must have, most often what the part read.

    Raises:
        ConfigError: It returned something else.
    """
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
    """Asserts that arguments are single random keys.

    Raises:
        ArgumentError: Names the argument.
    """
    for name, key in keys.items():
        dtype, rank = getattr(key, "dtype", np.dtype(object)), np.ndim(key)
        typed = jnp.issubdtype(dtype, jax.dtypes.prng_key) and rank == 0
        raw = dtype == jnp.uint32 and rank == 1
        check_argument(name, key, typed or raw, "one random key, such as jax.random.key(0)")


def _assert_dtype(name: str, array: Any, kinds: Any, expected: str) -> None:
    dtype = getattr(array, "dtype", None)
    kinds = kinds if isinstance(kinds, tuple) else (kinds,)
    if dtype is None or not any(jnp.issubdtype(dtype, kind) for kind in kinds):
        found = f"type {type(array).__name__}" if dtype is None else f"dtype {dtype}"
        raise AssertionError(f"{name} has {found}: must be an array of {expected}")


def _check_values(name: str, array: np.ndarray, least: int, most: int) -> None:
    if array.size and not least <= array.min() <= array.max() <= most:
        raise ArgumentError(
            f"{name} holds {array.min()} to {array.max()}: must be integers from {least} to {most}"
        )


def attended(name: str, array: jax.Array) -> jax.Array:
    """Converts an attention mask to bool.

    Args:
        name: The argument, for messages.
        array: bool, True = attend, or integers 1 and 0.

    Returns:
        bool, of the same shape.

    Raises:
        ArgumentError: The array holds other numbers; the message says how to convert them.
    """
    if jnp.issubdtype(array.dtype, jnp.bool_):
        return array
    if jnp.issubdtype(array.dtype, jnp.floating):
        raise ArgumentError(
            f"{name} has dtype {array.dtype}: must be bool, True = attend; give {name} == 0 where "
            f"0 and -inf are added to the logits, {name} > 0 where 1 stands for True"
        )
    assert_integers(**{name: array})
    if isinstance(array, np.ndarray) and not np.isin(array, (0, 1)).all():
        raise ArgumentError(
            f"{name} holds {array.min()} to {array.max()}: must be bool, or 1 = attend and 0"
        )
    return array.astype(bool)


def check_numbers(**numbers: tuple[Any, Rule]) -> None:
    """Checks scalars that may be traced; of a `jax.Array` only the shape and dtype are checked.

    Example:
      ``check_numbers(eps=(eps, NOT_NEGATIVE))``

    Raises:
        ArgumentError: Names the argument, its value and what would be right.
    """
    for name, (value, rule) in numbers.items():
        if isinstance(value, jax.Array):
            kinds = jnp.floating, jnp.integer
            fits = value.ndim == 0 and any(jnp.issubdtype(value.dtype, kind) for kind in kinds)
        else:
            fits = rule.allows(plain(value))
        check_argument(name, value, fits, rule.expected)


def static(name: str, value: Any, rule: Rule) -> Any:
    """Returns an argument that must be known while tracing as a Python number.

    Args:
        name: The argument.
        value: A Python number, or a NumPy or JAX scalar.
        rule: Which numbers are allowed.

    Returns:
        The number.

    Raises:
        ArgumentError: Names the argument, its value and what would be right.
    """
    known = not isinstance(value, jax.core.Tracer)
    check_argument(name, value, known, f"{rule.expected}, known while tracing")
    value = plain(value)
    check_argument(name, value, rule.allows(value), rule.expected)
    return value


def static_pair(name: str, sizes: Sequence[int]) -> tuple[int, int]:
    """Returns the two sizes of an image or a grid as Python's integers.

    Args:
        name: The argument's name.
        sizes: Rows and columns.

    Returns:
        (rows, columns).

    Raises:
        ArgumentError: They are not two integers of at least 1, or are traced.
    """
    two = isinstance(sizes, Sequence | np.ndarray) and len(sizes) == 2
    check_argument(name, sizes, two, "two integers, (rows, columns)")
    rows, columns = (static(name, size, at_least(1)) for size in sizes)
    return rows, columns


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Checks that an argument is one of a few names.

    Args:
        name: The argument.
        value: What was given.
        choices: The allowed names.

    Raises:
        ArgumentError: Names the argument, its value and the choices.
    """
    rule = one_of(choices)
    check_argument(name, value, rule.allows(value), rule.expected)


def rows_of_copies(axis: str) -> AbstractContextManager:
    """Says that arrays have the rows of one copy of the model, as inside `jax.shard_map`.

    What depends on the number of a row (dropout) is then what it is for the rows of all copies.

    Args:
        axis: The mesh axis along which the copies lie; their rows follow one another.

    Returns:
        A context manager.
    """
    return _COPIES(axis)


def first_row(rows: int) -> jax.Array:
    """uint32: the number of the first of this many rows among those of all copies of the model."""
    axis = _COPIES.value
    copy = 0 if axis is None else jax.lax.axis_index(axis)
    return jnp.uint32(rows) * jnp.asarray(copy, jnp.uint32)


def is_cut_by_hand() -> bool:
    """Whether arrays have the rows of one copy of the model, see `rows_of_copies`."""
    return _COPIES.value is not None


def spec_of(x: jax.Array) -> PartitionSpec | None:
    """Returns the partition spec in the type of `x`, one entry per axis.

    None if no mesh is set or its axes are not explicit: then the compiler decides or, inside
    `shard_map`, the array is the part of one device.
    """
    sharding = jax.typeof(x).sharding
    return sharding.spec if sharding.mesh.explicit_axes else None


def platform() -> str:
    """Returns the platform that the computation is traced for: "cpu", "gpu" or "tpu".

    It is that of the mesh in use, which differs from this machine's in ahead-of-time compilation,
    or else that of JAX's default backend.
    """
    device = jax.sharding.get_abstract_mesh().abstract_device
    # jax 0.10.0 does not say which platform the devices of a mesh belong to.
    return getattr(device, "platform", None) or jax.default_backend()


def mesh_axes(entry: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the mesh axes of one entry of a spec: none, one or several."""
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


def per_device(function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """Applies a function to each device's own rows and heads.

    In an explicit mesh JAX refuses some operations on sharded axes, such as a reshape that splits
    or merges heads, because it cannot know where the result should be. Within `function` nothing is
    sharded. It must treat rows and heads separately: `per_device(lambda x: x[:, :, ::2], query)`.

    Args:
        function: From arrays to an array whose leading axes are sharded as those of the first.
        *arrays: Activations `[B, T, N, H]`, or others with the batch or heads in the same places.

    Returns:
        The result, sharded as the first array; without a mesh `function(*arrays)`.
    """
    specs = tuple(spec_of(x) for x in arrays)
    if specs[0] is None:
        return function(*arrays)
    entries = list(specs[0])
    while entries and entries[-1] is None:
        entries.pop()
    sharded = PartitionSpec(*entries)
    return jax.shard_map(function, in_specs=specs, out_specs=sharded, check_vma=False)(*arrays)
