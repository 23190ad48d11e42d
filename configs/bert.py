"""BERT base and large, pre-training: configs/bert.py:base (or large).

Devlin et al., BERT, https://arxiv.org/abs/1810.04805. Appendix A.2: batch 256 x 512 tokens, a
million steps, Adam at 1e-4 with (0.9, 0.999), weight decay 0.01, warm-up over 10,000 steps, linear
decay, dropout 0.1; masked tokens (15 %; of them 80 % hidden, 10 % random) and the next sentence.
Gradients clipped at 1 and an epsilon of 1e-6 are those of the released code.

Two things differ: the paper trains on 128 tokens for the first 90 % of the steps
(--data.sequence-length 128), and here a pair is cut from a document at any token, not at the end of
a sentence. By default it reads the standard library's text with a newly trained tokenizer. Books
and Wikipedia with the published vocabulary: --data.source TextFiles --data.source.path corpus/
--data.tokenizer TokenizerFile --data.tokenizer.path bert-base-uncased/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, SentencePairs, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose, padded


def get_config(size: str = "base") -> Config:
    model = choose("bert.py", size).config
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size)),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=model.vocab_size),
            objective=SentencePairs(label="next_sentence"),
            sequence_length=512,
            batch_size=256,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=1e-4, warmup_steps=10_000),
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.999,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=1_000_000,
            clip_norm=1.0,
            loss_chunk=128,
            eval_interval=5000,
            checkpoint_interval=5000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
