"""A T5 fine-tuned to summarize; other text-to-text tasks work the same way.

The model and its tokenizer are those of the checkpoint. Name it and a table on the command line:
--init-from HF_DIR --data.train train.jsonl

The table has a column "document" and a column "summary" (XSum). Other columns, as of CNN/DailyMail:
--data.source article --data.target highlights. Without --data.validation a tenth of the rows is
held out. BART takes no prefix, and has other special tokens: --data.prefix ""
--data.special-tokens tokenizer --data.start end_of_text

Raffel et al., T5, https://arxiv.org/abs/1910.10683: section 3.1.2 (Adafactor, a constant rate of
0.001, rows of 512 tokens, dropout 0.1), appendix D.7 ("summarize: "). Their 2^18 steps of 128 rows
are for the largest data; here three epochs of 32. The model writes a summary for every validation
row at the end, greedily, which ROUGE compares with the table's: `jaxformer evaluate RUN_DIR` again.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import SummaryText
from jaxformer.optim import Adafactor, Constant


def get_config() -> Config:
    return Config(
        data=SummaryText(
            train="train.jsonl",
            prefix="summarize: ",
            source_length=512,
            target_length=128,
            truncate=True,
            batch_size=32,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=Adafactor(schedule=Constant(learning_rate=1e-3, warmup_steps=0)),
        train=TrainConfig(
            steps=None, epochs=3, clip_norm=None, eval_interval=500, checkpoint_interval=500
        ),
    )
