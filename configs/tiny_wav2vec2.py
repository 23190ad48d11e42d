"""A small wav2vec 2.0 that is pre-trained on sounds alone, in minutes on a CPU.

eSpeak NG speaks the sentences of tiny_speech_ctc.py (pip install 'jaxformer[speech]'), whose texts
are not read. The model learns to tell the quantized frame at each masked position from others of
the same sound (Baevski et al., https://arxiv.org/abs/2006.11477). The log has the perplexity of
both codebooks, of which each has 32 codes: it falls to 1 if the quantizer collapses. The sizes and
the rates are choices.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import MaskedSpokenSentences
from jaxformer.models import QuantizedFrames, WaveformConfig
from jaxformer.nn import DotProductAttention, Embeddings, PreNorm
from jaxformer.nn.waveform import ConvolutionalFeatures, PositionalConvolution, SpanMasking
from jaxformer.optim import AdamW, Linear

FEATURES = ConvolutionalFeatures(
    channels=(64, 64, 96, 96),
    kernels=(20, 8, 4, 4),
    strides=(10, 4, 2, 2),
    norm="each",
    bias=True,
)


def get_config() -> Config:
    return Config(
        model=WaveformConfig(
            num_layers=3,
            model_dim=96,
            num_heads=4,
            mlp_dim=192,
            features=FEATURES,
            position_convolution=PositionalConvolution(kernel_size=16, groups=6),
            span_masking=SpanMasking(time_probability=0.65),
            residual=PreNorm(),
            embeddings=Embeddings(),
            self_attention=DotProductAttention(bias=True, output_bias=True),
            dropout=0.0,
            heads=(
                QuantizedFrames(
                    codes=32,
                    code_dim=64,
                    width=64,
                    num_negatives=50,
                    gumbel_decay=0.997,
                ),
            ),
        ),
        data=MaskedSpokenSentences(
            sampling_rate=8000,
            min_seconds=1.0,
            max_seconds=4.0,
            features=FEATURES,
            num_negatives=50,
            buckets=2,
            batch_size=16,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=1e-3, warmup_steps=50), weight_decay=0.01, beta2=0.98
        ),
        train=TrainConfig(steps=600, clip_norm=1.0, eval_interval=100, checkpoint_interval=200),
    )
