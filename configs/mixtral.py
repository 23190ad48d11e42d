"""Mixtral, Mistral with eight experts in every layer: configs/mixtral.py:8x7b (or 8x22b).

Sizes: Jiang et al., Mixtral of Experts, https://arxiv.org/abs/2401.04088, table 1, and the released
checkpoints, which also give the weight of the balancing loss for fine-tuning (0.02 in 8x7b, 0.001
in 8x22b). How they were trained was not published beyond rows of 32768 tokens (section 1); the rest
of the recipe is that of Llama 2 70B (Touvron et al., https://arxiv.org/abs/2307.09288, section 2.2:
4M tokens per step, peak 1.5e-4, warm-up over 2000 steps, cosine to a tenth, 2T tokens).

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path mixtral/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "8x7b") -> Config:
    model = choose("mixtral.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            sequence_length=32768,
            batch_size=128,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=1.5e-4, warmup_steps=2000, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-5,
        ),
        train=TrainConfig(
            steps=2 * 10**12 // (128 * 32768),
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
