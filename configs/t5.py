"""T5 from 60M to 11B, pre-training: configs/t5.py:small (or base, large, 3b, 11b).

Raffel et al., Exploring the Limits of Transfer Learning, https://arxiv.org/abs/1910.10683. Section
3.1.2: 2^19 steps of 128 x 512 tokens, Adafactor at 1 / sqrt(max(t, 10^4)), dropout 0.1; section
3.3.4: 15 % of the tokens in spans of 3. The models of section 3.7 saw sixteen times the text in a
step, for a million steps (--data.batch-size 2048 --train.steps 1000000), mixed with supervised
tasks, which are not used here. Adafactor's constants are its paper's; T5 does not clip gradients in
addition.

The released models initialize each matrix with a separate deviation; here it is 0.02 for all.

By default it reads the standard library's text with a newly trained tokenizer. C4 with the
published vocabulary: --data.source JsonLines --data.source.path c4/ --data.tokenizer TokenizerFile
--data.tokenizer.path t5-small/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, SpanCorruption, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import Adafactor, InverseSquareRoot
from jaxformer.zoo.recipes import choose


def get_config(size: str = "small") -> Config:
    model = choose("t5.py", size).config
    return Config(
        model=replace(
            model,
            dropout=0.1,
            self_attention=replace(model.self_attention, dropout=0.1),
            remat="full",
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="unigram", vocab_size=32_100),
            objective=SpanCorruption(noise_density=0.15, mean_span=3.0),
            sequence_length=512,
            batch_size=128,
        ),
        optimizer=Adafactor(
            schedule=InverseSquareRoot(1e-2, warmup_steps=0, constant_steps=10_000)
        ),
        train=TrainConfig(
            steps=2**19, clip_norm=None, eval_interval=1000, checkpoint_interval=1000
        ),
        mesh=MeshConfig(fsdp=-1),
    )
