"""A small vision transformer on scikit-learn's digits: 1797 photographs, 8 x 8 pixels, no download.

Nine tenths are for training, 180 or so for validation. Patches of 2 x 2 pixels make 16 tokens and
the class token. Always answering with the most frequent digit is right 10 % of the time; a linear
classifier on the pixels about 96 %. With this seed it reaches 98.9 %: expect 97 to 99.5 %.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import Images
from jaxformer.data.tasks.images.labelled import Digits
from jaxformer.functional import Learned
from jaxformer.models import Classification, VisionConfig
from jaxformer.optim import Cosine, Muon


def get_config() -> Config:
    return Config(
        model=VisionConfig(
            num_layers=4,
            model_dim=96,
            num_heads=4,
            mlp_dim=192,
            image_size=(8, 8),
            patch_size=(2, 2),
            channels=1,
            position=Learned(max_length=17),
            dropout=0.1,
            scan_layers=False,  # unrolled layers are faster on a CPU
            heads=(Classification(num_labels=10),),
        ),
        data=Images(
            source=Digits(),
            image_size=(8, 8),
            channels=1,
            mean=(0.31,),
            std=(0.38,),
            validation_fraction=0.1,
            batch_size=64,
        ),
        optimizer=Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=50)),
        train=TrainConfig(
            steps=600, label_smoothing=0.1, eval_interval=100, checkpoint_interval=300
        ),
    )
