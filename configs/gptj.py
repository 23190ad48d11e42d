"""GPT-J 6B: configs/gptj.py.

Wang and Komatsuzaki (2021), https://github.com/kingoflolz/mesh-transformer-jax: the README (383,500
steps, 402 billion tokens) and configs/6B_roto_256.json (512 x 2048 tokens per step, peak 1.2e-4,
warm-up over 3000 steps, cosine to a tenth over 300,000 more, weight decay 0.1); Adam with (0.9,
0.999) and clipping at 1 are in device_train.py.

By default it trains on the standard library with a newly trained tokenizer. For the Pile or another
corpus: --data.source JsonLines --data.source.path pile/, and for the published vocabulary
--data.tokenizer TokenizerFile --data.tokenizer.path gpt-j-6b/tokenizer.json.
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose, padded


def get_config(size: str = "6b") -> Config:
    model = choose("gptj.py", size).config
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size), remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=50_257),
            sequence_length=2048,
            batch_size=512,
        ),
        optimizer=AdamW(
            schedule=Cosine(
                learning_rate=1.2e-4, warmup_steps=3000, final_fraction=0.1, decay_steps=303_000
            ),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=383_500,
            clip_norm=1.0,
            loss_chunk=512,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
