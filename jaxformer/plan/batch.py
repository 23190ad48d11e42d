"""The largest batch that fits."""

from dataclasses import replace
from math import isqrt

from jaxformer.config import Config
from jaxformer.plan.memory import estimate
from jaxformer.plan.slices import Slice
from jaxformer.plan.trace import trace_step

_FULL = 0.9
"""Of the memory of a device, when the search ends."""


def largest_batch(config: Config, slice_: Slice) -> int:
    """The most rows of a batch that fit, with the mesh and rematerialisation as they are.

    Memory grows with the rows of a part, about in proportion: two traces tell how fast, and the
    others confirm. It grows faster where rows are compared, and slower while they fit on the chip.

    Args:
        config: The experiment.
        slice_: The chips.

    Returns:
        Rows, a multiple of what the mesh cuts them into; 0 where not even one for each device fits.
    """
    sizes = config.mesh.sizes(slice_.num_devices)
    unit = sizes[0] * sizes[1] * config.train.gradient_accumulation
    limit = slice_.chip.memory.value

    def needed(units: int) -> int:
        rows = replace(config, data=config.data.without_ramp(batch_size=units * unit))
        return estimate(trace_step(rows, slice_)).peak

    def reaching(units: int, found: int) -> int:
        """Where the line through the memory of one unit and of so many meets the limit."""
        return 1 + int((units - 1) * (limit - one) / max(found - one, 1))

    if (one := needed(1)) > limit:
        return 0
    fitting, held, too_many = 1, one, None
    units = reaching(2, needed(2))
    while fitting < units and held < _FULL * limit:
        if (found := needed(units)) > limit:
            too_many = units
        else:
            fitting, held = units, found
        units = reaching(units, found)
        if too_many is not None and not fitting < units < too_many:
            units = isqrt(fitting * too_many)
    return fitting * unit
