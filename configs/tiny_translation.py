"""The 2017 Transformer in small, from English to German, on the phrases of Unicode's locale data.

Babel includes them: names of languages, countries and currencies, dates in words, amounts; about
3700 pairs, a tenth of them held out. No download. Copying the English gives a BLEU of 4 and a chrF
of 38; with this seed the model reaches 76 and 74 (greedy).

Vaswani et al., Attention Is All You Need, https://arxiv.org/abs/1706.03762: post-norm, sinusoidal
positions, one table for both languages and the output, ReLU, label smoothing 0.1 and Adam with
(0.9, 0.98) and the inverse square root schedule.

Translate something else, line by line: --data.source src.txt --data.target tgt.txt
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import ParallelText
from jaxformer.functional import LayerNorm, Sinusoidal
from jaxformer.models import EncoderDecoderConfig
from jaxformer.nn import MLP, PostNorm, TokenEmbeddings
from jaxformer.optim import AdamW, InverseSquareRoot


def get_config() -> Config:
    return Config(
        model=EncoderDecoderConfig(
            vocab_size=1024,
            num_layers=2,
            model_dim=128,
            num_heads=4,
            mlp_dim=512,
            position=Sinusoidal(theta=10_000.0),
            decoder_position=Sinusoidal(theta=10_000.0),
            norm=LayerNorm(eps=1e-6),
            residual=PostNorm(),
            feed_forward=MLP(activation="relu", gated=False, bias=True),
            embeddings=TokenEmbeddings(scale=128**0.5),
            init_std=128**-0.5,  # so that scaled embeddings have unit variance
            depth_scaled_init=False,
            tie_embeddings=True,
            dropout=0.1,
            scan_layers=False,  # unrolled layers are faster on a CPU
        ),
        data=ParallelText(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=1024),
            source_length=24,
            target_length=24,
            batch_size=32,
            validation_fraction=0.1,
        ),
        optimizer=AdamW(
            schedule=InverseSquareRoot(learning_rate=3e-3, warmup_steps=150),
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.98,
            eps=1e-9,
        ),
        train=TrainConfig(
            steps=600, label_smoothing=0.1, eval_interval=100, checkpoint_interval=300
        ),
    )
