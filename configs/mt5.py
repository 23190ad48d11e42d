"""mT5 from 300M to 13B, pre-training: configs/mt5.py:small (or base, large, xl, xxl).

Xue et al., mT5, https://arxiv.org/abs/2010.11934, section 4: a million steps of 1024 x 1024 tokens,
the rate 1 / sqrt(max(t, 10^4)), no dropout, 15 % of the tokens in spans of 3. Adafactor is T5's.

By default it reads the standard library's text with a newly trained tokenizer, which is much
smaller than the published one of 250,000 tokens. mC4 with the latter: --data.source JsonLines
--data.source.path mc4/ --data.tokenizer TokenizerFile --data.tokenizer.path
mt5-small/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, SpanCorruption, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import Adafactor, InverseSquareRoot
from jaxformer.zoo.recipes import choose


def get_config(size: str = "small") -> Config:
    model = choose("mt5.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="unigram", vocab_size=32_100),
            objective=SpanCorruption(noise_density=0.15, mean_span=3.0),
            sequence_length=1024,
            batch_size=1024,
        ),
        optimizer=Adafactor(
            schedule=InverseSquareRoot(1e-2, warmup_steps=0, constant_steps=10_000)
        ),
        train=TrainConfig(
            steps=1_000_000,
            clip_norm=None,
            loss_chunk=64,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
