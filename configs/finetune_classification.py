"""A checkpoint fine-tuned to label texts: sentiment, topics, pairs of sentences, or a number.

The model, its tokenizer and its longest row are those of the checkpoint; the head has as many
labels as the training table. Name both on the command line:
--init-from HF_DIR --data.train train.csv

The table has a column "label", and one of texts or two of pairs: "text", "sentence", "premise" and
"hypothesis", ... Columns of other names: --data.text title body --data.label topic. Numbers in
place of labels: --data.labels Number.

The recipe is that of BERT (Devlin et al., https://arxiv.org/abs/1810.04805, appendix A.3): Adam at
2e-5 to 5e-5, three epochs, batch 32; warm-up over a tenth of the steps, linear decay and weight
decay 0.01 are those of the released code.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import LabelledText
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=LabelledText(
            train="train.csv",
            text=None,
            sequence_length=None,
            truncate=True,
            special_tokens="tokenizer",
            batch_size=32,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=3e-5, warmup_steps=None),
            weight_decay=0.01,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=500, checkpoint_interval=500),
    )
