"""A small encoder that tags the words of Python's standard library: name, keyword, string, ...

The library's own `tokenize` module is the gold standard; no download. Words of comments and
docstrings are tagged separately, so a "for" is a keyword in one place and part of a string in
another. Whole modules are held out for validation. Always answering with the most frequent tag is
right 37 % of the time, the most frequent tag of each word 75 %. With this seed it reaches 92.2 %:
expect 91 to 93 %.

The encoder is that of tiny_encoder_mlm.py, whose run it can start from:
--init-from runs/tiny_encoder_mlm
which takes it to 90 % in the first hundred steps (88 % without) and to the same in the end.

Tag your own sentences, one word and its tag on a line:
--data.train ColumnFile --data.train.path train.txt --data.validation ColumnFile
--data.validation.path dev.txt (and as many num_labels in the head as there are tags).
"""

from dataclasses import replace
from pathlib import Path

from jaxformer.config import Config, TrainConfig, load_config
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import TaggedText
from jaxformer.data.tasks.tags.tagged_text import PythonTokens
from jaxformer.models import TokenClassification
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    encoder = load_config(str(Path(__file__).with_name("tiny_encoder_mlm.py"))).model
    return Config(
        model=replace(
            encoder,
            heads=(TokenClassification(num_labels=6),),
            dropout=0.1,
            self_attention=replace(encoder.self_attention, dropout=0.1),
        ),
        data=TaggedText(
            train=PythonTokens(sentence_words=40),
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=2048),
            sequence_length=128,
            truncate=True,  # one row in sixteen is longer
            batch_size=16,
            validation_fraction=0.1,
        ),
        optimizer=AdamW(schedule=Linear(learning_rate=1e-3, warmup_steps=50)),
        train=TrainConfig(steps=400, eval_interval=100, checkpoint_interval=200),
    )
