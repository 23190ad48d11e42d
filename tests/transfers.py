"""What a run does with the model that it starts from, without a run."""

from jaxformer.models import VisionConfig
from jaxformer.training.transfer.origin import open_named
from jaxformer.training.transfer.transfer import Transfer


def transfer(params, folder, model, layers=None):
    """Fresh parameters with those of the model in a folder, and what became of them."""
    images_alone = isinstance(model, VisionConfig)
    origin = open_named(folder, "init_from", may_lack_parts=True, images_alone=images_alone)
    shapes = {name: array.shape for name, array in params.items()}
    planned = Transfer.of(origin, model, shapes, layers)
    return planned.apply(params), planned
