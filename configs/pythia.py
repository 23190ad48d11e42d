"""Pythia from 70M to 12B: configs/pythia.py:70m (or 160m, 410m, 1b, 1.4b, 2.8b, 6.9b, 12b).

Biderman et al., Pythia, https://arxiv.org/abs/2304.01373: table 1 (peak rates) and the files of
https://github.com/EleutherAI/pythia, models/: 143,000 steps of 1024 x 2048 tokens, Adam with (0.9,
0.95) and 1e-8, weight decay 0.1, clipping at 1, warm-up over a hundredth of the steps, cosine to a
tenth, no dropout, and initial weights of sqrt(2 / 5D). (The file of the 1B model says 2.5e-4, the
table 3e-4.) Projections to the residual stream start at that over sqrt(2L) here, there at 2 / (L
sqrt(D)).

By default it trains on the standard library with a newly trained tokenizer. For the Pile or another
corpus: --data.source JsonLines --data.source.path pile/, and for the published vocabulary
--data.tokenizer TokenizerFile --data.tokenizer.path pythia-70m/tokenizer.json.
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose

PEAKS = {
    "70m": 1e-3,
    "160m": 6e-4,
    "410m": 3e-4,
    "1b": 3e-4,
    "1.4b": 2e-4,
    "2.8b": 1.6e-4,
    "6.9b": 1.2e-4,
    "12b": 1.2e-4,
}


def get_config(size: str = "70m") -> Config:
    model = choose("pythia.py", size).config
    return Config(
        model=replace(model, init_std=(2 / (5 * model.model_dim)) ** 0.5, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=50_277),
            sequence_length=2048,
            batch_size=1024,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=PEAKS[size], warmup_steps=1430, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=143_000,
            clip_norm=1.0,
            loss_chunk=512,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
