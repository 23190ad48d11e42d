"""Continued pre-training of a checkpoint, on your own texts.

The checkpoint gives the model, the tokenizer and the objective: a decoder predicts the next token,
an encoder hidden tokens, an encoder-decoder hidden spans (T5) or the text itself (BART).
--init-from HF_DIR --data.source Files --data.source.path text.parquet

Rows are as long as the checkpoint's positions: 2048 tokens at most, 512 of T5
(--data.sequence-length 4096). Documents are joined, and cut into rows.

AdamW at 5e-5 and one epoch are those of the examples of transformers (run_clm.py, run_mlm.py), the
warm-up over a tenth of the steps and the cosine those of Gupta et al.,
https://arxiv.org/abs/2308.04014, who warm up again before a model learns another corpus. Adapters
(--train.lora LoRA) take about ten times the learning rate.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, Files
from jaxformer.optim import AdamW, Cosine


def get_config() -> Config:
    return Config(
        data=DataConfig(
            source=Files(path="text"),
            objective=None,
            sequence_length=None,
            batch_size=16,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=5e-5, warmup_steps=None, final_fraction=0.1),
            weight_decay=0.01,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=1, eval_interval=100, checkpoint_interval=500),
    )
