"""A small encoder-decoder of T5 v1.1's shape, span corruption on the standard library's text.

The text is part of every Python installation (about 12 MB of source code and reference), so nothing
is downloaded. 142 tokens of byte-level BPE become inputs of 128 and targets of 31: 15 % of the
tokens are removed, in spans of 3 on average.

The frequencies of the targets' tokens alone have a loss of 5.75. With this seed 300 steps reach
4.04 and 33 %: expect 3.9 to 4.2.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, SpanCorruption, TrainTokenizer
from jaxformer.functional import RMSNorm, T5Bias
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import MLP, DotProductAttention
from jaxformer.optim import Cosine, Muon


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            vocab_size=2048,
            num_layers=3,
            model_dim=192,
            num_heads=4,
            mlp_dim=384,
            position=T5Bias(num_buckets=32, max_distance=128, bidirectional=True),
            decoder_position=T5Bias(num_buckets=32, max_distance=128, bidirectional=False),
            norm=RMSNorm(eps=1e-6),
            self_attention=DotProductAttention(scale=1.0),
            feed_forward=MLP(activation="gelu_tanh"),
            tie_embeddings=False,
            scan_layers=False,  # unrolled layers are faster on a CPU
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=2048),
            objective=SpanCorruption(),
            sequence_length=128,
            batch_size=32,
        ),
        optimizer=Muon(schedule=Cosine(learning_rate=3e-3, warmup_steps=50)),
        train=TrainConfig(steps=300, eval_interval=100, checkpoint_interval=100),
    )
