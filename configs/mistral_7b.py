"""Mistral 7B: grouped queries and a sliding window of 4096 tokens in every layer.

Sizes: Jiang et al., Mistral 7B, https://arxiv.org/abs/2310.06825, table 1. How it was trained was
not published; the recipe is that of Llama 2 7B, its contemporary of the same size (Touvron et al.,
https://arxiv.org/abs/2307.09288, section 2.2: 4M tokens per step, peak 3e-4, warm-up over 2000
steps, cosine to a tenth, 2T tokens).

Train it on text of your own, with the published vocabulary:
--data.source JsonLines --data.source.path corpus/ --data.tokenizer TokenizerFile
--data.tokenizer.path mistral/tokenizer.json
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.functional.norms import RMSNorm
from jaxformer.functional.positional_schemes import RoPE
from jaxformer.models.config import DecoderConfig
from jaxformer.sharding import MeshConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Cosine


def get_config() -> Config:
    return Config(
        model=DecoderConfig(
            vocab_size=32_000,
            num_layers=32,
            model_dim=4096,
            num_heads=32,
            num_kv_heads=8,
            head_dim=128,
            mlp_dim=14_336,
            windows=(4096,),
            position=RoPE(theta=10_000.0),
            norm=RMSNorm(eps=1e-5),
            activation="silu",
            gated=True,
            tie_embeddings=False,
            remat="full",
        ),
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
            steps=477_000,
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
