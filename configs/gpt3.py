"""GPT-3 from 125M to 175B: configs/gpt3.py:small (or medium, large, xl, 2.7b, 6.7b, 13b, 175b).

Brown et al., Language Models are Few-Shot Learners, https://arxiv.org/abs/2005.14165. Table 2.1:
peak rates and tokens per step; appendix B: 300 billion tokens in rows of 2048, Adam with (0.9,
0.95) and 1e-8, clipping at 1, weight decay 0.1, warm-up over 375 million tokens, cosine to a tenth
over 260 billion.

The paper starts with steps of 32,000 tokens and reaches the full size after 4 to 12 billion,
linearly; here all steps have it. In your own file, data.ramp = linear_ramp(16, 80, 1536,
tokens=12_000_000_000) lets the batches of 175b grow so. Its layers alternate between dense and
banded attention; here all are dense. It does not mention dropout, and there is none here.

By default it trains on the standard library with a newly trained tokenizer. For another corpus:
--data.source JsonLines --data.source.path corpus/, and for OpenAI's vocabulary --data.tokenizer
TokenizerFile --data.tokenizer.path gpt2/tokenizer.json.
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose, padded

LENGTH = 2048
# The peak learning rate, and the rows of a step: half a million tokens are 256 of 2048.
RUNS = {
    "small": (6e-4, 256),
    "medium": (3e-4, 256),
    "large": (2.5e-4, 256),
    "xl": (2e-4, 512),
    "2.7b": (1.6e-4, 512),
    "6.7b": (1.2e-4, 1024),
    "13b": (1e-4, 1024),
    "175b": (0.6e-4, 1536),
}


def get_config(size: str = "small") -> Config:
    model, (peak, rows) = choose("gpt3.py", size).config, RUNS[size]
    tokens = rows * LENGTH
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size), remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            sequence_length=LENGTH,
            batch_size=rows,
        ),
        optimizer=AdamW(
            schedule=Cosine(
                learning_rate=peak,
                warmup_steps=375_000_000 // tokens,
                final_fraction=0.1,
                decay_steps=260_000_000_000 // tokens,
            ),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=300_000_000_000 // tokens,
            clip_norm=1.0,
            loss_chunk=512,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
