"""A checkpoint fine-tuned to tag words: named entities, parts of speech.

The model, its tokenizer and its longest row are those of the checkpoint; the head has as many
labels as the training sentences. Name both on the command line; the file has one word and its tag
on a line, and an empty line after each sentence (CoNLL-2003), or is CoNLL-U or a table with a list
of words and a list of tags in each row:
--init-from HF_DIR --data.train train.txt

The first piece of each word is tagged, as in BERT (Devlin et al.,
https://arxiv.org/abs/1810.04805, section 5.3); the rest is the recipe of its appendix A.3.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import ColumnFile, TaggedText
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=TaggedText(
            train=ColumnFile("train.txt"),
            sequence_length=None,
            truncate=True,
            special_tokens="tokenizer",
            batch_size=16,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-5, warmup_steps=None),
            weight_decay=0.01,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=500, checkpoint_interval=500),
    )
