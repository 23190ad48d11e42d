"""A small Llama-shaped decoder on the text of Python's standard library: minutes on two cores.

The frequencies of the tokens alone have a loss of 6.42. With this seed 500 steps reach 3.70, 1.69
bits per byte: expect 3.6 to 3.8.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.models import DecoderConfig
from jaxformer.optim import Cosine, Muon


def get_config() -> Config:
    return Config(
        model=DecoderConfig(
            vocab_size=2048,
            num_layers=4,
            model_dim=192,
            num_heads=4,
            num_kv_heads=2,
            mlp_dim=512,
            scan_layers=False,  # unrolled layers are faster on a CPU
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=2048),
            sequence_length=256,
            batch_size=8,
        ),
        optimizer=Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=50)),
        train=TrainConfig(steps=500, eval_interval=100, checkpoint_interval=100),
    )
