"""The outputs of the Flax classes, read by attribute, key or index, or as a tuple."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax

from jaxformer.hub.flax_signatures import OUTPUT_FIELDS


class FlaxOutput(dict):
    """An output of a Flax class: a pytree of the fields that are not None, in their order."""

    fields: ClassVar[tuple[str, ...]] = ()
    """The names of the class's fields."""

    def __init__(self, *values: Any, **named: Any):
        """Takes the fields in their order, or by name; those that are None are left out."""
        given = dict(zip(self.fields, values, strict=False)) | named
        if unknown := given.keys() - set(self.fields):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        super().__init__({n: given[n] for n in self.fields if given.get(n) is not None})

    def __getattr__(self, name: str) -> Any:
        if name in self.fields:
            return self.get(name)
        raise AttributeError(f"{type(self).__name__} has no field {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __getitem__(self, key: str | int | slice) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        """Returns the fields that are not None; outputs of parts are tuples too."""
        values = (self[name] for name in self.fields if name in self)
        return tuple(x.to_tuple() if isinstance(x, FlaxOutput) else x for x in values)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with other values for some fields."""
        return type(self)(**{**self, **changes})

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        """Returns the outputs of a model whose names are fields; "PART.field" is one of a part."""
        outputs, parts = {}, {}
        for name, value in found.items():
            part, _, own = name.rpartition(".")
            stacked = own.endswith(("hidden_states", "attentions"))
            owner = parts.setdefault(part, {}) if part else outputs
            owner[own] = tuple(value) if stacked else value
        pooled = OUTPUTS["FlaxBaseModelOutputWithPooling"]
        outputs |= {name: pooled.of(values) for name, values in parts.items()}
        return cls(**{name: outputs[name] for name in cls.fields if name in outputs})


def _output_class(name: str, fields: str) -> type[FlaxOutput]:
    text = f"The fields {', '.join(fields.split())}."
    made = type(name, (FlaxOutput,), {"fields": tuple(fields.split()), "__doc__": text})

    def flatten(output: FlaxOutput) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        names = tuple(n for n in output.fields if n in output)
        return [(jax.tree_util.DictKey(n), output[n]) for n in names], names

    jax.tree_util.register_pytree_with_keys(
        made, flatten, lambda names, values: made(**dict(zip(names, values, strict=True)))
    )
    return made


OUTPUTS: Mapping[str, type[FlaxOutput]] = {
    f"Flax{name}": _output_class(f"Flax{name}", fields) for name, fields in OUTPUT_FIELDS.items()
}
"""The classes of outputs by name."""
