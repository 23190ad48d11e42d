"""DeiT: ViT with a second token, whose state is trained on what a teacher says."""

from functools import partial

from jaxformer.hub.model_format import Architecture, ModelFormat
from jaxformer.hub.tasks import DistilledClassificationTask, SequenceClassificationTask, Task
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.models import VisionConfig
from jaxformer.zoo.vit import LAYOUTS, TINY, names, read_vit, write_vit


def weight_map(config: VisionConfig) -> WeightMap:
    """The names of the tensors; beside a second classifier the first has another name."""
    own = names("deit") | {"heads.distillation.output": "distillation_classifier"}
    if len(config.heads) > 1:
        own["heads.label.output"] = "cls_classifier"
    return WeightMap(own, layouts=LAYOUTS)


_NO_POOLER = {"pooler": None}

FORMATS = (
    ModelFormat(
        model_type="deit",
        read=partial(read_vit, distillation_token=True),
        write=write_vit,
        weight_map=weight_map,
        architectures=(
            Architecture("DeiTForImageClassification", SequenceClassificationTask(), _NO_POOLER),
            Architecture(
                "DeiTForImageClassificationWithTeacher", DistilledClassificationTask(), _NO_POOLER
            ),
            Architecture("DeiTModel", Task()),
        ),
        tiny=TINY,
        prefix="deit.",
        harmless=("encoder_stride",),
    ),
)
