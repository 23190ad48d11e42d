"""OLMoE, 64 small experts, eight for each token: configs/olmoe.py:1b-7b.

Sizes and recipe: Muennighoff et al., OLMoE, https://arxiv.org/abs/2409.02060, table 10, and
https://github.com/allenai/OLMoE, configs/olmoe-8x1b-newhp-newds-cx5-fine1-normreorder.yml: AdamW,
peak 4e-4, warm-up over 8.4B tokens, cosine to a tenth, 1024 rows of 4096 tokens, weights 0.01 of
the balancing loss and 0.001 of the router's z loss, 5.1T tokens (section 2). There norms and
embeddings decay too; here matrices do.

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path olmoe/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "1b-7b") -> Config:
    model = choose("olmoe.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
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
