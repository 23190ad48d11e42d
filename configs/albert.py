"""ALBERT, pre-training: configs/albert.py:base (or large, xlarge, xxlarge).

Lan et al., ALBERT, https://arxiv.org/abs/1909.11942, section 4.1: 125,000 steps of 4096 rows of at
most 512 tokens, LAMB at 0.00176, masked spans of up to three words, and the order of two pieces of
text. Warm-up over 3125 steps, linear decay, weight decay 0.01, (0.9, 0.999), an epsilon of 1e-6 and
clipping at 1 are those of the released code. Dropout is 0.1, and 0 for xxlarge (section 4.8).

The lengths of masked spans follow SpanBERT's geometric distribution, cut at three; the paper's are
as 1 : 1/2 : 1/3. By default it reads the standard library's text with a newly trained tokenizer.
Books and Wikipedia with the published vocabulary: --data.source TextFiles --data.source.path
corpus/ --data.tokenizer TokenizerFile --data.tokenizer.path albert-base-v2/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, MaskedLM, SentencePairs, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import LAMB, Linear
from jaxformer.zoo.recipes import choose, padded


def get_config(size: str = "base") -> Config:
    model, dropout = choose("albert.py", size).config, 0.0 if size == "xxlarge" else 0.1
    return Config(
        model=replace(
            model,
            vocab_size=padded(model.vocab_size),
            dropout=dropout,
            self_attention=replace(model.self_attention, dropout=dropout),
            remat="full",
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="unigram", vocab_size=model.vocab_size),
            objective=SentencePairs(
                label="sentence_order", masking=MaskedLM(whole_word=True, max_span=3)
            ),
            sequence_length=512,
            batch_size=4096,
        ),
        optimizer=LAMB(
            schedule=Linear(learning_rate=0.00176, warmup_steps=3125),
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.999,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=125_000,
            clip_norm=1.0,
            loss_chunk=128,
            gradient_accumulation=8,  # parts of 512 rows; more for fewer devices
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
