"""T5 v1.1, pre-training: configs/t5_v1_1.py:small (or base, large, xl, xxl).

Shazeer, GLU Variants Improve Transformer, https://arxiv.org/abs/2002.05202, section 3.2: 524,288
steps of 128 x 512 tokens, Adafactor with the inverse square root of T5 (constant for 10,000 steps)
and a line to 0 over the last tenth, no dropout, span corruption as in T5. How long the released
models of other sizes than base were trained was not published; they have the same recipe.

By default it reads the standard library's text with a newly trained tokenizer. C4 with the
published vocabulary: --data.source JsonLines --data.source.path c4/ --data.tokenizer TokenizerFile
--data.tokenizer.path t5-v1_1-small/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, SpanCorruption, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import Adafactor, InverseSquareRoot
from jaxformer.zoo.recipes import choose

STEPS = 2**19


def get_config(size: str = "small") -> Config:
    model = choose("t5_v1_1.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="unigram", vocab_size=32_100),
            objective=SpanCorruption(noise_density=0.15, mean_span=3.0),
            sequence_length=512,
            batch_size=128,
        ),
        optimizer=Adafactor(
            schedule=InverseSquareRoot(
                1e-2, warmup_steps=0, constant_steps=10_000, cooldown_steps=STEPS // 10
            )
        ),
        train=TrainConfig(
            steps=STEPS, clip_norm=None, eval_interval=1000, checkpoint_interval=1000
        ),
        mesh=MeshConfig(fsdp=-1),
    )
