"""wav2vec 2.0 base and large, pre-training: configs/wav2vec2.py:base (or large).

Baevski et al., wav2vec 2.0, https://arxiv.org/abs/2006.11477, sections 3.1 and 4.2, and the files
of the released code (fairseq, examples/wav2vec/config/pretraining). Spans of 10 frames cover 65 %
if none overlap, 100 other frames, Adam with (0.9, 0.98) and an epsilon of 1e-6, weight decay 0.01,
warm-up over 32,000 steps, linear decay, and a Gumbel softmax whose temperature begins at 2 and
falls by a factor of 0.999995.

base: LibriSpeech, 400,000 steps at 5e-4, 1.6 hours in a batch, clips of 2 to 15.6 seconds, dropout
0.1, lowest temperature 0.5. large: LibriVox, 600,000 steps at the paper's 3e-4 (the file has 5e-3),
2.7 hours in a batch, clips of 2 to 20 seconds, no dropout, lowest temperature 0.1. Clipping the
gradient at 1 is a choice, and so are batches of 384 and 512 clips, nearly as many hours.

Not here: for base LayerDrop of 0.05, a penalty of 10 on the squares of the convolutions' outputs
and a tenth of their gradient. Batches are clips rather than samples.

A folder of sounds, or a table: --data.train LibriSpeech/train-960 --data.validation
LibriSpeech/dev-clean
"""

from dataclasses import replace
from typing import NamedTuple

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import MaskedSounds
from jaxformer.distributed import MeshConfig
from jaxformer.nn.waveform import SpanMasking
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose


class Run(NamedTuple):
    """How a model is trained: a step has `rows` clips of at most `seconds` each."""

    learning_rate: float
    steps: int
    rows: int
    seconds: float
    dropout: float
    min_temperature: float


RUNS = {
    "base": Run(5e-4, 400_000, 384, 250_000 / 16_000, dropout=0.1, min_temperature=0.5),
    "large": Run(3e-4, 600_000, 512, 320_000 / 16_000, dropout=0.0, min_temperature=0.1),
}


def get_config(size: str = "base") -> Config:
    model, run = choose("wav2vec2.py", size).config, RUNS[size]
    (head,) = model.heads
    return Config(
        model=replace(
            model,
            dropout=run.dropout,
            feature_dropout=run.dropout,
            self_attention=replace(model.self_attention, dropout=run.dropout),
            span_masking=SpanMasking(time_probability=0.65),
            heads=(replace(head, dropout=run.dropout, min_gumbel_temperature=run.min_temperature),),
            remat="full",
        ),
        data=MaskedSounds(
            train="sounds",
            normalize=size == "large",
            max_seconds=run.seconds,
            features=model.features,
            batch_size=run.rows,
            on_bad_row="skip",  # shorter sounds
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=run.learning_rate, warmup_steps=32_000),
            weight_decay=0.01,
            beta2=0.98,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=run.steps,
            clip_norm=1.0,
            gradient_accumulation=4,  # more for fewer devices
            eval_interval=5000,
            checkpoint_interval=5000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
