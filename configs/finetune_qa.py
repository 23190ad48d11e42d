"""A checkpoint fine-tuned to find the answers of questions in a text, as in SQuAD.

The model, its tokenizer and its longest row are those of the checkpoint. Name both on the command
line; the file is SQuAD's .json, or .jsonl or .parquet with a question in each row:
--init-from HF_DIR --data.train train-v1.1.json

The recipe is that of BERT on SQuAD (Devlin et al., https://arxiv.org/abs/1810.04805, section 4.2:
three epochs, 5e-5, batch 32); rows of 384 tokens that start 128 tokens apart are those of the
released code. For a checkpoint with shorter rows, questions and the stride become shorter too.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import SpanText
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=SpanText(
            train="train-v1.1.json",
            sequence_length=None,
            truncate=True,
            special_tokens="tokenizer",
            batch_size=32,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-5, warmup_steps=None),
            weight_decay=0.01,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=1000, checkpoint_interval=1000),
    )
