"""Phi-1.5 and Phi-2: configs/phi.py:1.5 (or 2).

Li et al., Textbooks Are All You Need II, https://arxiv.org/abs/2309.05463, section 2.3: a constant
rate of 2e-4 without warm-up, Adam with (0.9, 0.98) and an epsilon of 1e-7, weight decay 0.1,
batches of 2048 rows of 2048 tokens, 150 billion tokens.

Phi-2 saw 1.4 trillion tokens; the rest of its recipe was not published and is Phi-1.5's here.
Neither mentions clipping, here at 1, or dropout, here none.

By default it trains on the standard library with a newly trained tokenizer. For another corpus:
--data.source JsonLines --data.source.path textbooks/, and for the published vocabulary
--data.tokenizer TokenizerFile --data.tokenizer.path phi-2/tokenizer.json.
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Constant
from jaxformer.zoo.recipes import choose

TOKENS = {"1.5": 150 * 10**9, "2": 1400 * 10**9}


def get_config(size: str = "1.5") -> Config:
    model = choose("phi.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=50_257),
            sequence_length=2048,
            batch_size=2048,
        ),
        optimizer=AdamW(
            schedule=Constant(learning_rate=2e-4, warmup_steps=0),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.98,
            eps=1e-7,
        ),
        train=TrainConfig(
            steps=TOKENS[size] // (2048 * 2048),
            clip_norm=1.0,
            loss_chunk=512,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
