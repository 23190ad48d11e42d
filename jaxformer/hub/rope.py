"""RoPE in config.json: `rope_parameters` (version 5), `rope_theta` and `rope_scaling` (4)."""

import warnings
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

from jaxformer.errors import ConfigError
from jaxformer.functional.positions.rope import NoScaling, Scaling
from jaxformer.functional.positions.rope_scaling import (
    DynamicNTK,
    LinearScaling,
    Llama3Scaling,
    LongRoPE,
    YaRN,
)
from jaxformer.functional.positions.schemes import RoPE
from jaxformer.hub.fields import Field
from jaxformer.hub.hf_config import HFConfig

_ORIGINAL = "original_max_position_embeddings"
_LONGEST = "max_position_embeddings"
_FRACTION = "partial_rotary_factor"


_KINDS: dict[str, type[Scaling]] = {
    "default": NoScaling,
    "linear": LinearScaling,
    "dynamic": DynamicNTK,
    "llama3": Llama3Scaling,
    "yarn": YaRN,
    "longrope": LongRoPE,
}
_NAMES = {
    "low_frequency_factor": "low_freq_factor",
    "high_frequency_factor": "high_freq_factor",
    "short_factors": "short_factor",
    "long_factors": "long_factor",
    "original_max_length": _ORIGINAL,
}
"""Field of a scaling -> its name in transformers, if different."""
# Fields of published files that do not change the outputs.
_HARMLESS = ("type", "finetuned")


def read_rope(
    hf_config: HFConfig,
    theta: float = 10_000.0,
    fraction: float | None = None,
    *,
    theta_field: str = "rope_theta",
    fraction_field: str = _FRACTION,
    synonyms: Mapping[str, str] | None = None,
    layout: str = "half",
) -> RoPE:
    """Reads the scheme from a config.json of either version; see `Rope`."""
    current = hf_config.take("rope_parameters", None)
    old = hf_config.take("rope_scaling", None)
    where = "rope_scaling" if old else "rope_parameters"
    # As in transformers, the fields of version 4 take precedence.
    found = {
        "rope_theta": hf_config.take(theta_field, theta),
        _FRACTION: hf_config.take(fraction_field, fraction),
        **_dictionary(old or current, where, hf_config),
    }
    rope = _rope(found, where, hf_config, fraction is not None, synonyms or {})
    return replace(rope, layout=layout)


def read_layer_ropes(
    hf_config: HFConfig, bases: Mapping[str, tuple[str | None, float]], scaled: tuple[str, ...]
) -> dict[str, RoPE]:
    """Reads the scheme of each layer type ("full_attention", ...)."""
    current = hf_config.take("rope_parameters", None)
    old = hf_config.take("rope_scaling", None)
    current = _dictionary(current, "rope_parameters", hf_config)
    if unknown := sorted(set(current) - set(bases)):
        raise ConfigError(
            f"{hf_config.path}: rope_parameters has {', '.join(unknown)}; in this model "
            f"it has {', '.join(bases)}, and all other fields within them"
        )
    old = _dictionary(old, "rope_scaling", hf_config)
    if old and "rope_type" not in old:
        # As in transformers, but only for these models.
        warnings.warn(
            f"{hf_config.path}: rope_scaling = {old!r} is ignored: this model reads rope_type, "
            "not type",
            stacklevel=2,
        )
        old = {}
    ropes = {}
    for kind, (field, theta) in bases.items():
        where = f"rope_parameters.{kind}"
        own = _dictionary(current.get(kind), where, hf_config)
        base = {"rope_theta": hf_config.take(field, theta) if field else theta}
        found = base | own | (old if kind in scaled else {})
        ropes[kind] = _rope(found, where, hf_config, False, {})
        if getattr(ropes[kind].scaling, "truncate", True) is not True:
            raise ConfigError(
                f"{hf_config.path}: {where}.truncate = False is not supported: transformers "
                "ignores it where layer types have their own parameters"
            )
    return ropes


def write_rope(
    rope: RoPE, *, theta_field: str = "rope_theta", fraction_field: str | None = None
) -> dict[str, Any]:
    """Returns the fields of a scheme for both versions of transformers.

    If `fraction_field` is None, all channels rotate and no fraction is written.
    """
    scaling = write_scaling(rope.scaling)
    old = {theta_field: rope.theta, "rope_scaling": scaling}
    current = {"rope_theta": rope.theta, **(scaling or {"rope_type": "default"})}
    if fraction_field is not None:
        old[fraction_field] = current[_FRACTION] = rope.fraction
    if isinstance(rope.scaling, DynamicNTK):
        old[_LONGEST] = rope.scaling.original_max_length
    return {"rope_parameters": current, **old}


def write_layer_ropes(
    ropes: Mapping[str, RoPE], theta_fields: Mapping[str, str | None], scaled: str
) -> dict[str, Any]:
    """Returns the fields that `read_layer_ropes` reads, for both versions."""
    values: dict[str, Any] = {"rope_parameters": {}}
    for kind, rope in ropes.items():
        field = theta_fields[kind]
        written = write_rope(rope, theta_field=field or "rope_theta")
        values["rope_parameters"][kind] = written.pop("rope_parameters")
        old = written.pop("rope_scaling")
        values |= written if field else {}
        if kind == scaled:
            values["rope_scaling"] = old
    return values


def write_scaling(scaling: Scaling) -> dict[str, Any] | None:
    """Returns the `rope_scaling` object of a scaling; None for `NoScaling`."""
    if type(scaling) is NoScaling:
        return None
    name = next((name for name, kind in _KINDS.items() if kind is type(scaling)), None)
    if name is None:
        raise ConfigError(
            f"the scaling {scaling!r} is not in transformers: must be one of {', '.join(_KINDS)}"
        )
    usual = {field.name: field.default for field in fields(scaling)}
    written: dict[str, Any] = {"rope_type": name}
    for ours, theirs in _names_of(type(scaling)).items():
        value = getattr(scaling, ours)
        if value != usual[ours]:
            written[theirs] = list(value) if isinstance(value, tuple) else value
    return written


def _names_of(kind: type[Scaling]) -> dict[str, str]:
    """Returns the names of a scaling's fields in an object of `rope_parameters`."""
    names = {field.name: _NAMES.get(field.name, field.name) for field in fields(kind)}
    if kind is DynamicNTK:  # scales from `max_position_embeddings` on
        del names["original_max_length"]
    return names


def _dictionary(value: Any, where: str, hf_config: HFConfig) -> dict[str, Any]:
    if not isinstance(value, dict | None):
        raise ConfigError(f"{hf_config.path}: {where} = {value!r}: must be an object")
    return dict(value or {})


def _rope(
    found: dict[str, Any],
    where: str,
    hf_config: HFConfig,
    partial: bool,
    synonyms: Mapping[str, str],
) -> RoPE:
    """Reads the scheme from one complete object of `rope_parameters`."""
    kind = found.get("rope_type") or found.get("type") or "default"
    model_type = hf_config.values.get("model_type")
    own = hf_config.section(
        where, found | {"rope_type": synonyms.get(kind, kind), "model_type": model_type}
    )
    theta = float(own.number("rope_theta"))
    fraction = own.number(_FRACTION, 1.0) if partial else 1.0
    if not partial:
        own.expect(_FRACTION, 1.0, None)
    scaling = _scaling(own, hf_config)
    own.finish(_HARMLESS)
    return RoPE(theta=theta, fraction=fraction, scaling=scaling)


def _scaling(own: HFConfig, hf_config: HFConfig) -> Scaling:
    """Reads the scaling from an object of `rope_parameters`."""
    kind = own.choose("rope_type", _KINDS)
    names = _names_of(kind)
    given = {ours: _value(own, theirs) for ours, theirs in names.items()}
    longest = hf_config.number(_LONGEST, None)
    outside = hf_config.number(_ORIGINAL, None)
    if kind is DynamicNTK:
        given["original_max_length"] = longest
    elif "original_max_length" in names:
        # As in transformers, the field outside the object takes precedence.
        given["original_max_length"] = outside or given["original_max_length"] or longest
    if kind in (YaRN, LongRoPE) and given["factor"] is None and longest is not None:
        given["factor"] = longest / given["original_max_length"]
    for field in fields(kind):
        if given[field.name] is None and field.default is MISSING:
            name = names.get(field.name, _LONGEST)
            raise ConfigError(f"{own.path}: the field {name!r} is missing")
    try:
        return kind(**{ours: x for ours, x in given.items() if x is not None})
    except ConfigError as error:
        raise ConfigError(f"{own.path}: {error}") from error


def _value(own: HFConfig, name: str) -> Any:
    """Reads a field of a scaling; None if it is missing."""
    if name == "truncate":
        own.expect(name, None, True, False)
        return own.take(name, None)
    if name not in ("short_factor", "long_factor"):
        return own.number(name, None)
    value = own.take(name, None)
    listed = isinstance(value, list | tuple) and all(isinstance(x, int | float) for x in value)
    if not listed and value is not None:
        raise ConfigError(f"{own.path}: {name} = {value!r}: must be a list of numbers")
    return value


@dataclass(frozen=True)
class Rope(Field):
    """The rotary scheme of all layers."""

    theta: float = 10_000.0
    """The default base."""
    fraction: float | None = None
    """The default fraction of rotating channels; None if all channels always rotate."""
    theta_field: str = "rope_theta"
    """The name of the base in version 4."""
    fraction_field: str = _FRACTION
    """The name of the fraction in version 4."""
    synonyms: Mapping[str, str] | None = None
    """Old name of a scaling -> its current name."""
    layout: str = "half"
    """The layout of channel pairs, see `RoPE`."""

    def read(self, hf_config):
        return {"position": read_rope(hf_config, **vars(self))}

    def write(self, config):
        partial = self.fraction is not None
        return write_rope(
            config.position,
            theta_field=self.theta_field,
            fraction_field=self.fraction_field if partial else None,
        )
