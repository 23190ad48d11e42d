"""ByT5 from 300M to 13B, pre-training: configs/byt5.py:small (or base, large, xl, xxl).

Xue et al., ByT5, https://arxiv.org/abs/2105.13626, section 3.1: as mT5 (a million steps of 1024 x
1024 tokens, the rate 1 / sqrt(max(t, 10^4)), no dropout, 15 % of the tokens), but tokens are bytes
and spans have 20 on average. The paper takes the last byte ids for its sentinels; here they are
separate tokens.

By default it reads the standard library's text. mC4 or another corpus, which needs no vocabulary:
--data.source JsonLines --data.source.path mc4/
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import Bytes, DataConfig, SpanCorruption
from jaxformer.distributed import MeshConfig
from jaxformer.optim import Adafactor, InverseSquareRoot
from jaxformer.zoo.recipes import choose


def get_config(size: str = "small") -> Config:
    model = choose("byt5.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=Bytes(),
            objective=SpanCorruption(noise_density=0.15, mean_span=20.0),
            sequence_length=1024,
            batch_size=1024,
        ),
        optimizer=Adafactor(
            schedule=InverseSquareRoot(1e-2, warmup_steps=0, constant_steps=10_000)
        ),
        train=TrainConfig(
            steps=1_000_000, clip_norm=None, eval_interval=1000, checkpoint_interval=1000
        ),
        mesh=MeshConfig(fsdp=-1),
    )
