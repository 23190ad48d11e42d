"""Qwen3-MoE, 128 small experts, eight for each token: configs/qwen3_moe.py:30b-a3b.

The other size is qwen3_moe.py:235b-a22b. Sizes: Qwen Team, Qwen3, https://arxiv.org/abs/2505.09388,
table 2, and the released checkpoints, which also give the weight of the balancing loss (0.001).
Published of the training are 36T tokens, in rows of 4096 for most of them (section 3.2), and that
the load is balanced over the whole batch, as here (section 2). The rest of the recipe is that of
OLMoE (Muennighoff et al., https://arxiv.org/abs/2409.02060, table 10: AdamW, peak 4e-4, warm-up
over 2000 steps, cosine to a tenth, 4M tokens per step).

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path qwen3_moe/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "30b-a3b") -> Config:
    model = choose("qwen3_moe.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=32_000),
            sequence_length=4096,
            batch_size=1024,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=4e-4, warmup_steps=2000, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=36 * 10**12 // (1024 * 4096),
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
