"""RoBERTa base and large, pre-training: configs/roberta.py:base (or large).

Liu et al., RoBERTa, https://arxiv.org/abs/1907.11692, table 9: 500,000 steps of 8k x 512 tokens,
Adam with (0.9, 0.98) and an epsilon of 1e-6, weight decay 0.01, no clipping, linear decay, dropout
0.1; peak 6e-4 after 24,000 steps (base), 4e-4 after 30,000 (large). Section 4: only masked tokens,
chosen anew each time, in rows filled with whole texts.

By default it reads the standard library's text with a newly trained tokenizer. Another corpus, with
the published vocabulary: --data.source TextFiles --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path roberta-base/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, MaskedLM, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose, padded

SCHEDULES = {
    "base": Linear(learning_rate=6e-4, warmup_steps=24_000),
    "large": Linear(learning_rate=4e-4, warmup_steps=30_000),
}


def get_config(size: str = "base") -> Config:
    model = choose("roberta.py", size).config
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size), remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            objective=MaskedLM(),
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
