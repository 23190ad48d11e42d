"""Named activations: record or replace intermediate values of a function.

`tap` gives an intermediate value a name. It returns the value itself, unless the function runs
under `with_cache`, which records values, or `with_hooks`, which replaces them. Both wrap a pure
function and return a pure function, so `jit`, `vmap` and `grad` of the wrapped function work.
Outside of both, a tap adds nothing to the program.

`flax.nnx.capture` records what modules sow and adds perturbations for gradients, but cannot replace
a value, loses layer indices inside a scan, and needs a module; these functions work on any
function.

Models use the names of TransformerLens: "blocks.3.attn.hook_pattern".
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import get_opaque_trace_state

from jaxformer.checks import check_argument
from jaxformer.errors import ArgumentError, did_you_mean
from jaxformer.functional.arrays import place, spec_of

Hook = Callable[[jax.Array], jax.Array]
"""Maps an activation to its replacement, of the same shape."""
Names = str | Iterable[str] | None
"""One or several `fnmatch` patterns; None matches every activation."""


class _State(NamedTuple):
    """The active frames, outermost first, and the prefix of names."""

    frames: "tuple[_Frame, ...]"
    prefix: str = ""


# Part of the key of JAX's caches, so that a function traced with hooks is never reused without
# them.
_ACTIVE = jax.make_user_context(None)


def tap(name: str, value: jax.Array) -> jax.Array:
    """Gives a value a name under which `with_cache` and `with_hooks` find it.

    Args:
        name: The name, which is prefixed with the enclosing scopes.
        value: The value.

    Returns:
        The value, or its replacement by the hooks for its name, applied from the innermost to the
        outermost.
    """
    state = _ACTIVE.value
    if state is None:
        return value
    with _ACTIVE(None):  # Computations inside a hook are not named.
        for frame in reversed(state.frames):
            value = frame.receive(state.prefix + name, value)
    return value


def scope(name: str) -> AbstractContextManager:
    """Prefixes all names given inside with `name` and a dot.

    Args:
        name: The prefix, such as "blocks.3" or "attn".

    Returns:
        A context manager.
    """
    state = _ACTIVE.value
    return (
        nullcontext() if state is None else _ACTIVE(state._replace(prefix=f"{state.prefix}{name}."))
    )


def is_active() -> bool:
    """Whether a function runs under `with_cache` or `with_hooks`."""
    # A loop over layers is then unrolled and not rematerialised: inside `jax.lax.scan` and
    # `jax.checkpoint` layers have no numbers, and values cannot be recorded.
    return _ACTIVE.value is not None


def is_wanted(*names: str) -> bool:
    """Whether one of these activations is recorded or replaced; otherwise skip its computation."""
    state = _ACTIVE.value
    if state is None:
        return False
    full = [state.prefix + name for name in names]
    # Every frame must see every name, so do not stop at the first match.
    return sum(frame.matches(name) for frame in state.frames for name in full) > 0


def with_cache(function: Callable, names: Names = None, *, required: bool = True) -> Callable:
    """Makes a function also return activations by name.

    Args:
        function: A function of arrays. It may not call `jit` or a loop around an activation that is
            recorded: put `jit` around the result instead.
        names: The activations to record: a pattern such as "blocks.*.attn.hook_pattern" or several;
            None records all.
        required: Whether every pattern has to match an activation.

    Returns:
        A function of the same arguments that returns (result, {name: array}), in the order of
        computation.

    Raises:
        ArgumentError: When called: a pattern matches no activation, two activations have the same
            name, or one is inside a transformation that `function` applies.
    """
    patterns = ("*",) if names is None else _patterns("names", names)

    @functools.wraps(function)
    def wrapped(*arguments, **options):
        frame = _Recording(patterns)
        result = (
            _run(frame, function, arguments, options)
            if patterns
            else function(*arguments, **options)
        )
        if required and names is not None:
            frame.check_matched("names")
        return result, frame.recorded

    return wrapped


def with_hooks(function: Callable, hooks: Mapping[str, Hook], *, required: bool = True) -> Callable:
    """Makes a function compute with replaced values of some activations.

    Args:
        function: A function of arrays.
        hooks: Maps a pattern, such as "blocks.3.attn.hook_z", to a function from the activation to
            its replacement. If several patterns match a name, their hooks are applied in order.
        required: Whether every pattern has to match an activation.

    Returns:
        A function of the same arguments.

    Raises:
        ArgumentError: `hooks` is not a mapping to functions. When called: a pattern matches no
            activation, or a hook returns an array of another shape.
    """
    check_hooks(hooks)

    @functools.wraps(function)
    def wrapped(*arguments, **options):
        if not hooks:
            return function(*arguments, **options)
        frame = _Replacing(hooks)
        result = _run(frame, function, arguments, options)
        if required:
            frame.check_matched("hooks")
        return result

    return wrapped


def check_hooks(hooks: Any) -> None:
    """Raises ArgumentError unless `hooks` maps names to functions."""
    given = isinstance(hooks, Mapping) and all(callable(hook) for hook in hooks.values())
    wanted = 'a mapping from names to functions, such as {"blocks.0.attn.hook_z": zero_head(5)}'
    check_argument("hooks", hooks, given, wanted)
    _patterns("hooks", hooks)


class _Frame:
    """The handling of activations during one call of a wrapped function."""

    def __init__(self, patterns: Iterable[str]):
        self.patterns = tuple(patterns)
        self.names: dict[str, None] = {}

    def matches(self, name: str) -> bool:
        self.names[name] = None
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)

    def check_matched(self, argument: str) -> None:
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) for name in self.names):
                raise ArgumentError(
                    f"{argument} = {pattern!r}: must match an activation"
                    f"{_nearest(pattern, list(self.names))}"
                )


class _Recording(_Frame):
    """Records the activations whose names match."""

    def __init__(self, patterns: Iterable[str]):
        super().__init__(patterns)
        # Unlike with other dictionaries, JAX keeps the order of keys: the order of computation.
        self.recorded: OrderedDict[str, jax.Array] = OrderedDict()
        self.trace = get_opaque_trace_state()

    def receive(self, name: str, value: jax.Array) -> jax.Array:
        if not self.matches(name):
            return value
        if self.trace != get_opaque_trace_state():
            raise ArgumentError(
                f"names: {name} is computed inside a scan, checkpoint, jit, vmap or grad of the "
                "function, where it cannot be recorded: transform the function that records instead"
            )
        if name in self.recorded:
            raise ArgumentError(
                f"names: two activations are called {name}: put a scope around each of them"
            )
        self.recorded[name] = value
        return value


class _Replacing(_Frame):
    """Replaces the activations whose names match."""

    def __init__(self, hooks: Mapping[str, Hook]):
        super().__init__(hooks)
        self.hooks = dict(hooks)

    def receive(self, name: str, value: jax.Array) -> jax.Array:
        if self.matches(name):
            for pattern, hook in self.hooks.items():
                if fnmatchcase(name, pattern):
                    value = _replaced(pattern, name, value, hook(value))
        return value


def _run(frame: _Frame, function: Callable, arguments: tuple, options: dict[str, Any]) -> Any:
    state = _ACTIVE.value or _State(())
    with _ACTIVE(state._replace(frames=(*state.frames, frame))):
        return function(*arguments, **options)


def _replaced(pattern: str, name: str, value: jax.Array, result: Any) -> jax.Array:
    """Returns a hook's result with the dtype and sharding of the activation."""
    shape = getattr(result, "shape", None)
    if shape != value.shape:
        found = f"an array {shape}" if shape is not None else f"a {type(result).__name__}"
        raise ArgumentError(
            f"hooks[{pattern!r}]: returned {found} for {name}: must be an array {value.shape}"
        )
    return place(jnp.asarray(result, value.dtype), spec_of(value))


def as_tuple(names: Names) -> tuple[str, ...] | None:
    """Returns the names of `with_cache` as a hashable tuple; None for None."""
    return None if names is None else _patterns("names", names)


def as_pytree(hook: Hook) -> Hook:
    """Returns a hook as an argument of a compiled function: a callable pytree."""
    return jax.tree_util.Partial(hook) if jax.tree_util.all_leaves([hook]) else hook


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Hooks:
    """Ordered hooks by pattern, as an argument of a compiled function."""

    values: tuple[Hook, ...] = ()
    """The hooks; their arrays are arguments, so hooks with other arrays do not recompile."""
    patterns: tuple[str, ...] = field(default=(), metadata={"static": True})
    """The pattern of each."""

    @classmethod
    def of(cls, hooks: Mapping[str, Hook]) -> "Hooks":
        """Checks hooks by pattern, as for `with_hooks`."""
        check_hooks(hooks)
        return cls(tuple(map(as_pytree, hooks.values())), tuple(hooks))

    def by_pattern(self) -> dict[str, Hook]:
        """The hooks as `with_hooks` takes them."""
        return dict(zip(self.patterns, self.values, strict=True))


def _patterns(argument: str, names: Any) -> tuple[str, ...]:
    names = (names,) if isinstance(names, str) else names
    valid = isinstance(names, Iterable)
    names = tuple(names) if valid else names
    valid = valid and all(isinstance(name, str) for name in names)
    check_argument(
        argument, names, valid, 'a name such as "blocks.*.attn.hook_pattern", or several'
    )
    return names


def _nearest(pattern: str, names: list[str]) -> str:
    """Describes the names that are similar to a pattern, or some names."""
    if not names:
        return "; no activation has a name here"
    return did_you_mean(pattern, names, 3) or f", such as {', '.join(map(repr, names[:5]))}"


Saveable = Literal[
    "block_input",
    "query_key_value",
    "attention_context",
    "attention_output",
    "mlp_input",
    "mlp_hidden",
    "mlp_output",
]

SAVEABLE: dict[Saveable, str] = {
    "block_input": "the residual stream that a block reads, [B, T, D]",
    "query_key_value": "queries [B, T, N, H], keys and values [B, S, K, H], before norm and "
    "rotation",
    "attention_context": "the weighted values [B, T, N, H], and the kernel's residual for the "
    "backward pass: a float32 number for each query [B, N, T]; the reference implementation has "
    "neither",
    "attention_output": "the attention's output projection, [B, T, D]",
    "mlp_input": "the input of the feed-forward layer, [B, T, D]",
    "mlp_hidden": "the feed-forward layer's hidden units before their activation, [B, T, F], and "
    "those of the gate",
    "mlp_output": "the output of the feed-forward layer, [B, T, D]",
}
"""The names and their activations; each attention layer of a block has separate ones."""


def saveable(name: Saveable, x: jax.Array) -> jax.Array:
    """Names an activation for `jax.checkpoint` policies by a key of `SAVEABLE`."""
    return checkpoint_name(x, name)
