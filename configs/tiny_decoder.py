"""A small Llama-shaped decoder on the text of Python's standard library: minutes on two cores."""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.models.config import DecoderConfig
from jaxformer.training.optim import AdamW
from jaxformer.training.schedules import Cosine


def get_config() -> Config:
    return Config(
        model=DecoderConfig(
            vocab_size=4096,
            num_layers=4,
            model_dim=256,
            num_heads=4,
            num_kv_heads=2,
            mlp_dim=768,
            scan_layers=False,
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=4096),
            sequence_length=256,
            batch_size=16,
        ),
        optimizer=AdamW(schedule=Cosine(learning_rate=2e-3, warmup_steps=50)),
        train=TrainConfig(steps=600, eval_interval=150, checkpoint_interval=150),
    )
