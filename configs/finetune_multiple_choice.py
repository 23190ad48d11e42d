"""A checkpoint fine-tuned to choose among several texts: SWAG, and any table like it.

The model and its tokenizer are those of the checkpoint. Name both on the command line:
--init-from HF_DIR --data.train train.csv

The table has the columns of SWAG: a context "sent1", the start of each ending "sent2", "ending0" to
"ending3", and "label", the number of the right one. A column with lists of answers to a question:
--data.context question --data.start None --data.choices answers

The recipe is that of BERT (Devlin et al., https://arxiv.org/abs/1810.04805, section 4.4): three
epochs at 2e-5 with batch 16; warm-up over a tenth of the steps, linear decay and weight decay 0.01
are those of the released code.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import ChoiceText
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=ChoiceText(
            train="train.csv",
            truncate=True,
            special_tokens="tokenizer",
            batch_size=16,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=2e-5, warmup_steps=None),
            weight_decay=0.01,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=500, checkpoint_interval=500),
    )
