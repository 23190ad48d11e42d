"""A small encoder that tags the words of Python's standard library: name, keyword, string, ...

The library's own `tokenize` module is the gold standard; no download. Words of comments and
docstrings are words of their own, so a "for" is a keyword in one place and part of a string in
another. Whole modules are held out for validation. Always answering with the most frequent tag is
right 37 % of the time, the most frequent tag of each word 75 %. With this seed it reaches 91.5 %:
expect 90 to 93 %.

Tag sentences of your own, one word and its tag on a line:
--data.train ColumnFile --data.train.path train.txt --data.validation ColumnFile
--data.validation.path dev.txt (and as many num_labels in the head as there are tags).
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tagged import PythonTokens, TaggedText
from jaxformer.functional.positional_schemes import Learned
from jaxformer.models.config import EncoderConfig
from jaxformer.models.label_heads import TokenClassification
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Linear


def get_config() -> Config:
    return Config(
        model=EncoderConfig(
            vocab_size=2048,
            num_layers=2,
            model_dim=128,
            num_heads=4,
            mlp_dim=512,
            position=Learned(max_length=128),
            scan_layers=False,  # unrolled layers are faster on a CPU
            heads=(TokenClassification(num_labels=6),),
        ),
        data=TaggedText(
            train=PythonTokens(sentence_words=40),
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=2048),
            sequence_length=128,
            batch_size=16,
            validation_fraction=0.1,
        ),
        optimizer=AdamW(schedule=Linear(learning_rate=1e-3, warmup_steps=50)),
        train=TrainConfig(steps=400, eval_interval=100, checkpoint_interval=200),
    )
