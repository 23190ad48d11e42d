"""Llama 3 8B, with the sizes and the training recipe of its paper.

Grattafiori et al., The Llama 3 Herd of Models, https://arxiv.org/abs/2407.21783: table 3 (sizes,
peak learning rate, RoPE base) and section 3.4.1 (AdamW, warm-up over 8000 steps, cosine to a
hundredth over 1.2M steps; 8M tokens per step in sequences of 8192, after a start with half of it).

Train it on text of your own, with the published vocabulary:
--data.source JsonLines --data.source.path corpus/ --data.tokenizer TokenizerFile
--data.tokenizer.path llama3/tokenizer.json
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
            vocab_size=128_256,
            num_layers=32,
            model_dim=4096,
            num_heads=32,
            num_kv_heads=8,
            mlp_dim=14_336,
            position=RoPE(theta=500_000.0),
            norm=RMSNorm(eps=1e-5),
            activation="silu",
            gated=True,
            tie_embeddings=False,
            remat="full",
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=32_768),
            sequence_length=8192,
            batch_size=1024,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=3e-4, warmup_steps=8000, final_fraction=0.01),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
        ),
        train=TrainConfig(
            steps=1_200_000,
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
