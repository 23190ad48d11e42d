"""A small wav2vec 2.0 that learns to transcribe from nothing, in minutes on a CPU.

eSpeak NG speaks made-up sentences in twelve voices (pip install 'jaxformer[speech]'); validation
has other sentences, half of them in an additional voice. Sounds have 8,000 samples per second, and
a frame is 20 milliseconds as in wav2vec 2.0 (Baevski et al., https://arxiv.org/abs/2006.11477). The
sizes and the rates are choices. Transcribe with the result: jaxformer transcribe RUN_DIR clip.wav
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import Characters
from jaxformer.data.tasks import Spelling, SpokenSentences
from jaxformer.models import CTC, WaveformConfig
from jaxformer.nn import DotProductAttention, Embeddings, PreNorm
from jaxformer.nn.waveform import ConvolutionalFeatures, PositionalConvolution, SpanMasking
from jaxformer.optim import AdamW, Cosine

ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def get_config() -> Config:
    return Config(
        model=WaveformConfig(
            num_layers=3,
            model_dim=96,
            num_heads=4,
            mlp_dim=192,
            features=ConvolutionalFeatures(
                channels=(64, 64, 96, 96),
                kernels=(20, 8, 4, 4),
                strides=(10, 4, 2, 2),
                norm="each",
                bias=True,
            ),
            position_convolution=PositionalConvolution(kernel_size=16, groups=6),
            span_masking=SpanMasking(time_probability=0.0),
            residual=PreNorm(),
            embeddings=Embeddings(),
            self_attention=DotProductAttention(bias=True, output_bias=True),
            dropout=0.1,
            heads=(CTC(vocab_size=5 + len(ALPHABET), blank=0),),
        ),
        data=SpokenSentences(
            tokenizer=Characters(ALPHABET),
            spelling=Spelling(case="lower"),
            sampling_rate=8000,
            max_seconds=6.0,
            max_characters=80,
            buckets=2,
            batch_size=16,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=2e-3, warmup_steps=100), weight_decay=0.01, beta2=0.98
        ),
        train=TrainConfig(steps=1000, clip_norm=1.0, eval_interval=250, checkpoint_interval=250),
    )
