"""A checkpoint fine-tuned to label sounds: wav2vec 2.0, HuBERT, AST or the encoder of a Whisper.

The model and how it reads sounds are those of the checkpoint; the head has as many labels as the
training table. Name both on the command line:
--init-from HF_DIR --data.train clips.csv

The table has a column "audio" (or "path", "file") with paths relative to its folder, or in Parquet
the sounds themselves, and a column "label" (or "class", "category"). A clip of more than 20
seconds, or than the model's window, is cut: --data.max-seconds 10

Batch 32, 3e-5, a warm-up over a tenth of the steps and five epochs are those of transformers'
example for keywords (examples/pytorch/audio-classification, SUPERB KS), which also leaves the
convolutions of wav2vec 2.0 and HuBERT as they are: --train.frozen 'feature_encoder.*'
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import LabelledClips
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=LabelledClips(
            train="clips.csv",
            batch_size=32,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=3e-5, warmup_steps=None),
            weight_decay=0.0,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=5, eval_interval=500, checkpoint_interval=500),
    )
