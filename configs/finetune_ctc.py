"""A wav2vec 2.0 or HuBERT fine-tuned to transcribe.

The model, its characters and its blank are those of the checkpoint, which needs a vocab.json. Name
it and a table of sounds and texts on the command line:
--init-from HF_DIR --data.train clips.csv

The table has a column "audio" (or "path", "file") with paths relative to its folder, or in Parquet
the sounds themselves, and a column "text" (or "sentence", "transcription"). Texts are changed to
upper case without punctuation, as in published vocabularies; for others:
--data.spelling.case lower

Baevski et al., wav2vec 2.0, https://arxiv.org/abs/2006.11477, section 4.3 and appendix B: Adam, a
warm-up over a tenth of the steps, and the convolutions stay as they are. In the paper the rate is
then constant for 40 % of the steps, and a batch has 1,280 seconds per GPU; here linear decay, 5e-5
and 16 clips are choices. Word and character error rates are of the likeliest path, on texts in the
same spelling.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import Clips
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=Clips(
            train="clips.csv",
            batch_size=16,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-5, warmup_steps=None), weight_decay=0.0, beta2=0.98
        ),
        train=TrainConfig(
            steps=None,
            epochs=10,
            frozen=("feature_encoder.*",),
            eval_interval=500,
            checkpoint_interval=500,
        ),
    )
