"""ERNIE, pre-training: configs/ernie.py:2.0-base-en (or 3.0-base-zh).

Sun et al., ERNIE 2.0, https://arxiv.org/abs/1907.12412, the section on pre-training settings:
batches of 393,216 tokens, Adam with (0.9, 0.98), warm-up over 4000 steps to 5e-5 for English and
1.28e-4 for Chinese, then the inverse square root ("noam"); the sizes and the dropout of 0.1 are
BERT's.

Not published: the number of steps (each task until its metrics converge), weight decay, clipping;
BERT's million, 0.01 and 1 are used instead. Of the seven tasks this is the first, knowledge
masking: whole words and phrases are hidden, and spans of up to three words stand for the entities
and phrases that the paper's corpus has marked. The released base model of ERNIE 3.0 was distilled
from a larger one; here it has the recipe of ERNIE 2.0 in Chinese.

By default it reads the standard library's text with a newly trained tokenizer. Another corpus, with
the published vocabulary: --data.source TextFiles --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path ernie-2.0-base-en/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, MaskedLM, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, InverseSquareRoot
from jaxformer.zoo.recipes import choose, padded

PEAKS = {"2.0-base-en": 5e-5, "3.0-base-zh": 1.28e-4}


def get_config(size: str = "2.0-base-en") -> Config:
    model = choose("ernie.py", size).config
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size)),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=model.vocab_size),
            objective=MaskedLM(whole_word=True, max_span=3),
            sequence_length=512,
            batch_size=393_216 // 512,
        ),
        optimizer=AdamW(
            schedule=InverseSquareRoot(learning_rate=PEAKS[size], warmup_steps=4000),
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.98,
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
