"""Exports of small models for engines, and what an engine computes from one."""

from jaxformer.engines.export import engines_for, export_model, verify_export
from jaxformer.engines.tiny import save_plain
from jaxformer.pretrained.auto import load


def exported(kind, home, format, quantise=None, dtype=None, **changes):
    """A small model of a system, which is saved in `home / "hf"`, and its export."""
    save_plain(kind, home / "hf", **changes)
    model, out = load(home / "hf", dtype=None), home / "out"
    source = str(home / "hf")
    export_model(model, out, format=format, source=source, quantise=quantise, dtype=dtype)
    return model, out


def receipt_of(out, engine):
    """The receipt of an export in one engine."""
    (receipt,) = verify_export(out, engines_for(out, [engine]))
    return receipt
