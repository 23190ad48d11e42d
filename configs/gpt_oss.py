"""gpt-oss, experts in every layer with attention sinks: configs/gpt_oss.py:20b.

The other size is gpt_oss.py:120b. Sizes: OpenAI, gpt-oss-120b & gpt-oss-20b Model Card,
https://arxiv.org/abs/2508.10925, table 1 and section 2.2, and the released checkpoints. The card
publishes no optimizer: the recipe is that of OLMoE (Muennighoff et al.,
https://arxiv.org/abs/2409.02060, table 10: AdamW, peak 4e-4, warm-up over 2000 steps, cosine to a
tenth, 4M tokens per step, 5.1T tokens, weight 0.01 of the balancing loss).

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path gpt_oss/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "20b") -> Config:
    model = choose("gpt_oss.py", size).config
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
            steps=51 * 10**11 // (1024 * 4096),
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
