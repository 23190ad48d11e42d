"""DeiT: ViT with a second token, whose state is trained on what a teacher says."""

from functools import partial

from jaxformer.hub.format import Architecture, Format
from jaxformer.hub.tasks import SequenceClassification, Task, TaughtClassification
from jaxformer.hub.weights.table import Table
from jaxformer.models import VisionConfig
from jaxformer.zoo.vit import LAYOUTS, TINY, names, read_vit, write_vit


def table(config: VisionConfig) -> Table:
    """The names of the tensors; beside a second classifier the first has another name."""
    own = names("deit") | {"heads.distillation.output": "distillation_classifier"}
    if len(config.heads) > 1:
        own["heads.label.output"] = "cls_classifier"
    return Table(own, layouts=LAYOUTS)


_NO_POOLER = {"pooler": None}

FORMATS = (
    Format(
        model_type="deit",
        read=partial(read_vit, distillation_token=True),
        write=write_vit,
        table=table,
        architectures=(
            Architecture("DeiTForImageClassification", SequenceClassification(), _NO_POOLER),
            Architecture(
                "DeiTForImageClassificationWithTeacher", TaughtClassification(), _NO_POOLER
            ),
            Architecture("DeiTModel", Task()),
        ),
        tiny=TINY,
        prefix="deit.",
        harmless=("encoder_stride",),
    ),
)
