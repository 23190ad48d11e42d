"""BART base and large, pre-training: configs/bart.py:base (or large).

Lewis et al., BART, https://arxiv.org/abs/1910.13461, section 5.1: batches of 8000 rows, here 8192,
500,000 steps, 30 % of the tokens in spans of Poisson(3) tokens behind one mask each, sentences in
random order. Dropout 0.1 is off in the last tenth of the steps there, here it stays.

Not published: learning rate, optimizer and length of rows. The paper follows RoBERTa, so they are
RoBERTa's: Liu et al., https://arxiv.org/abs/1907.11692, table 9 (peak 6e-4 after 24,000 steps for
base, 4e-4 after 30,000 for large, Adam with (0.9, 0.98) and 1e-6, weight decay 0.01, no clipping,
linear decay, rows of 512).

By default it reads the standard library's text with a newly trained tokenizer. Another corpus, with
the published vocabulary: --data.source TextFiles --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path bart-base/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, Denoising, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose, padded

SCHEDULES = {
    "base": Linear(learning_rate=6e-4, warmup_steps=24_000),
    "large": Linear(learning_rate=4e-4, warmup_steps=30_000),
}


def get_config(size: str = "base") -> Config:
    model = choose("bart.py", size).config
    return Config(
        model=replace(
            model,
            vocab_size=padded(model.vocab_size),
            self_attention=replace(model.self_attention, dropout=0.1),
            remat="full",
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            objective=Denoising(mask_ratio=0.3, mean_span=3.0, permute_sentences=True),
            sequence_length=512,
            batch_size=8192,
        ),
        optimizer=AdamW(
            schedule=SCHEDULES[size], weight_decay=0.01, beta1=0.9, beta2=0.98, eps=1e-6
        ),
        train=TrainConfig(
            steps=500_000,
            clip_norm=None,
            loss_chunk=128,
            gradient_accumulation=16,  # parts of 512 rows; more for fewer devices
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
