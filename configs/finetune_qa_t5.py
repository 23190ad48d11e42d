"""A T5 fine-tuned to write the answer to a question about a text, as in SQuAD.

The model and its tokenizer are those of the checkpoint. Name it and the questions on the command
line: --init-from HF_DIR --data.train train-v1.1.json --data.validation dev-v1.1.json
An encoder marks the answer in the text instead: finetune_qa.py

Raffel et al., T5, https://arxiv.org/abs/1910.10683: section 3.1.2 (Adafactor, a constant rate of
0.001, rows of 512 tokens, dropout 0.1), appendix D.15 ("question: ... context: ..."). The model
writes an answer to every validation question at the end, greedily; exact match and F1 are those of
SQuAD's script.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import AnswerText
from jaxformer.optim import Adafactor, Constant


def get_config() -> Config:
    return Config(
        data=AnswerText(
            train="train-v1.1.json",
            source_length=512,
            target_length=32,
            truncate=True,
            batch_size=32,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=Adafactor(schedule=Constant(learning_rate=1e-3, warmup_steps=0)),
        train=TrainConfig(
            steps=None, epochs=2, clip_norm=None, eval_interval=500, checkpoint_interval=500
        ),
    )
