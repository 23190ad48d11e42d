"""ViT on ImageNet: configs/vit.py:base-16 (or large-16, huge-14, 22b).

Dosovitskiy et al., An Image is Worth 16x16 Words, https://arxiv.org/abs/2010.11929, table 3 and
section 4.1, all sizes on ImageNet: 300 epochs in batches of 4096, Adam with (0.9, 0.999) at 3e-3,
warm-up over 10,000 steps, cosine to 0, weight decay 0.3, dropout 0.1, clipping at 1. On
ImageNet-21k and JFT-300M the table has lower rates, linear decay and weight decays of 0.03 and 0.1.
Images are flipped and cropped at random; here a crop shifts by up to 28 pixels, the paper's vary in
size too. In pre-training the paper's head also has a hidden layer.

22b: Dehghani et al., Scaling Vision Transformers to 22 Billion Parameters,
https://arxiv.org/abs/2302.05442: the shape is table 1's. 177,000 steps of 65,536 images, a peak of
1e-3, warm-up over 10,000 steps, the inverse square root, cool-down over the last 30,000 and weight
decay 0.03 (on the head 3.0, which is not here) are given from memory: compare them with the paper
before a run depends on them. Adam, its betas and clipping are those of the smaller ones, the square
root counts from the end of the warm-up, and there is no dropout: these are choices made here. The
loss is over the 1000 labels above, not over JFT's.

ImageNet's files, a folder for each of the 1000 labels, go on the command line: --data.source.path
imagenet/train --data.validation-source.path imagenet/val
"""

from dataclasses import replace
from typing import NamedTuple

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import HorizontalFlip, ImageFolder, Images, RandomCrop
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine, InverseSquareRoot, Schedule
from jaxformer.zoo.recipes import choose


class Run(NamedTuple):
    """How a model is trained: a step has `rows` images."""

    schedule: Schedule
    steps: int
    rows: int
    weight_decay: float
    dropout: float


IMAGENET = Run(
    Cosine(learning_rate=3e-3, warmup_steps=10_000, final_fraction=0.0),
    steps=300 * 1_281_167 // 4096,
    rows=4096,
    weight_decay=0.3,
    dropout=0.1,
)
LARGEST = Run(
    InverseSquareRoot(learning_rate=1e-3, warmup_steps=10_000, cooldown_steps=30_000),
    steps=177_000,
    rows=65_536,
    weight_decay=0.03,
    dropout=0.0,
)
RUNS = {"base-16": IMAGENET, "large-16": IMAGENET, "huge-14": IMAGENET, "22b": LARGEST}


def get_config(size: str = "base-16") -> Config:
    model, run = choose("vit.py", size).config, RUNS[size]
    return Config(
        model=replace(model, dropout=run.dropout, remat="full"),
        data=Images(
            source=ImageFolder("imagenet/train"),
            validation_source=ImageFolder("imagenet/val"),
            image_size=model.image_size,
            channels=model.channels,
            mean=(0.5,),
            std=(0.5,),
            augmentation=(RandomCrop(padding=28), HorizontalFlip()),
            batch_size=run.rows,
        ),
        optimizer=AdamW(
            schedule=run.schedule, weight_decay=run.weight_decay, beta1=0.9, beta2=0.999
        ),
        train=TrainConfig(
            steps=run.steps,
            clip_norm=1.0,
            gradient_accumulation=4,  # more for fewer devices
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
