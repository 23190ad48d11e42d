"""Gemma 2B: configs/gemma.py.

Gemma Team, https://arxiv.org/abs/2403.08295: tables 1 and 2 (sizes), rows of 8192 tokens (section
2) and 3 trillion tokens (section 4; its first version said 2). Optimizer, rates and batch size were
not published; the recipe is that of Llama 2 (Touvron et al., https://arxiv.org/abs/2307.09288,
table 1 and section 2.2: AdamW with (0.9, 0.95) and 1e-5, 4M tokens per step, peak 3e-4, warm-up
over 2000 steps, cosine to a tenth, weight decay 0.1, clipping at 1).

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path gemma/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "2b") -> Config:
    model = choose("gemma.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=32_000),
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
            steps=3 * 10**12 // (512 * 8192),
            clip_norm=1.0,
            loss_chunk=512,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
