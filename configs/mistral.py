"""Mistral 7B, grouped queries and a sliding window of 4096 tokens: configs/mistral.py.

Sizes: Jiang et al., Mistral 7B, https://arxiv.org/abs/2310.06825, table 1. How it was trained was
not published; the recipe is that of Llama 2 7B, its contemporary of the same size (Touvron et al.,
https://arxiv.org/abs/2307.09288, section 2.2: 4M tokens per step, peak 3e-4, warm-up over 2000
steps, cosine to a tenth, 2T tokens), in rows of 8192, the length of its context.

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path mistral/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "7b") -> Config:
    model = choose("mistral.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            sequence_length=8192,
            batch_size=512,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=3e-4, warmup_steps=2000, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-5,
        ),
        train=TrainConfig(
            steps=2 * 10**12 // (512 * 8192),
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
