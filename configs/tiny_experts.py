"""A small decoder with eight experts a layer on the text of Python's standard library.

A token uses two of them, so that it costs about as much as configs/tiny_decoder.py with a third
more hidden units. The log shows the load and the entropy of the router: without the balancing loss
(--model.feed-forward.losses) a few experts would get most tokens. Minutes on two cores.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.models import DecoderConfig
from jaxformer.nn import BalanceLoss, Experts, ZLoss
from jaxformer.optim import AdamW, Cosine


def get_config() -> Config:
    losses = BalanceLoss(weight=0.01), ZLoss(weight=0.001)
    return Config(
        model=DecoderConfig(
            vocab_size=2048,
            num_layers=4,
            model_dim=192,
            num_heads=4,
            num_kv_heads=2,
            mlp_dim=256,
            feed_forward=Experts(num=8, per_token=2, losses=losses),
            scan_layers=False,  # unrolled layers are faster on a CPU
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=2048),
            sequence_length=256,
            batch_size=8,
        ),
        optimizer=AdamW(schedule=Cosine(learning_rate=2e-3, warmup_steps=50)),
        train=TrainConfig(steps=500, eval_interval=100, checkpoint_interval=100),
    )
