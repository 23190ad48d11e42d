"""A checkpoint fine-tuned to label images: ViT, DeiT, BEiT, DINOv2, DINOv3, SigLIP or CLIP.

The model, the size of its images and how they are scaled, cut and normalised are those of the
checkpoint; the head has as many labels as the training images. Name both on the command line; the
folder has a sub-folder of images for each label, or is a table with a path and a label in each row:
--init-from HF_DIR --data.train photos

Images of another size: --data.image-size 384 384, for which tables of positions are resized. Half
of the images are mirrored; where left and right make a difference: --data.augmentation RandomCrop

AdamW at 5e-5 without weight decay, linear decay and three epochs are the defaults of the Trainer of
transformers; batch 16 and the warm-up over a tenth of the steps are choices.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import HorizontalFlip, ImageFolder, Images
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=Images(
            source=ImageFolder("photos"),
            image_size=None,
            channels=None,
            mean=None,
            std=None,
            scaling=None,
            augmentation=(HorizontalFlip(),),
            batch_size=16,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-5, warmup_steps=None),
            weight_decay=0.0,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=500, checkpoint_interval=500),
    )
