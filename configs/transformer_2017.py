"""The Transformer of 2017: configs/transformer_2017.py:base (or big).

Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762, section 5 and table 3:
about 25,000 source and 25,000 target tokens per step, 100,000 steps (base) or 300,000 (big), Adam
with (0.9, 0.98) and 1e-9, the rate D^-0.5 min(t^-0.5, t 4000^-1.5), dropout 0.1 (big: 0.3; for
English to French 0.1), label smoothing 0.1.

Not published: how long a sentence may be; here 128 tokens, to which longer ones are cut, so that
1024 rows have about as many tokens as the paper's batches. The paper averages the last 5 or 20
checkpoints; here --train.ema-decay has a similar effect. Gradients are not clipped.

By default it translates the English phrases of Unicode's locale data to German. WMT 2014, line by
line: --data.source train.en --data.target train.de --data.validation-source newstest2013.en
--data.validation-target newstest2013.de
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import ParallelText
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, InverseSquareRoot
from jaxformer.zoo.recipes import choose, padded

STEPS = {"base": 100_000, "big": 300_000}
WARMUP = 4000


def get_config(size: str = "base") -> Config:
    model = choose("transformer_2017.py", size).config
    width = model.model_dim
    return Config(
        # With this deviation the scaled embeddings have unit variance.
        model=replace(model, vocab_size=padded(model.vocab_size), init_std=width**-0.5),
        data=ParallelText(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            source_length=128,
            target_length=128,
            truncate=True,
            batch_size=1024,
        ),
        optimizer=AdamW(
            schedule=InverseSquareRoot((width * WARMUP) ** -0.5, warmup_steps=WARMUP),
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.98,
            eps=1e-9,
        ),
        train=TrainConfig(
            steps=STEPS[size],
            clip_norm=None,
            label_smoothing=0.1,
            loss_chunk=64,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
