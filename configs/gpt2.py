"""GPT-2 from 124M to 1.5B: configs/gpt2.py:small (or medium, large, xl).

Sizes: Radford et al., Language Models are Unsupervised Multitask Learners (2019), table 2, and the
released models; section 2.3: batches of 512 x 1024 tokens. The paper gives neither learning rates
nor steps. Those here are GPT-3's for models of the same parameters: Brown et al.,
https://arxiv.org/abs/2005.14165, table 2.1 and appendix B (half a million tokens per step, 300
billion in all, warm-up over 375 million, cosine to a tenth over 260 billion). Dropout 0.1 is that
of the released code.

By default it trains on the standard library with a newly trained tokenizer. For another corpus:
--data.source TextFiles --data.source.path books/, and for OpenAI's vocabulary --data.tokenizer
TokenizerFile --data.tokenizer.path gpt2/tokenizer.json.
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose, padded

PEAKS = {"small": 6e-4, "medium": 3e-4, "large": 2.5e-4, "xl": 2e-4}
TOKENS = 512 * 1024  # of a step


def get_config(size: str = "small") -> Config:
    model = choose("gpt2.py", size).config
    return Config(
        model=replace(
            model,
            vocab_size=padded(model.vocab_size),
            dropout=0.1,
            self_attention=replace(model.self_attention, dropout=0.1),
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            sequence_length=1024,
            batch_size=512,
        ),
        optimizer=AdamW(
            schedule=Cosine(
                learning_rate=PEAKS[size],
                warmup_steps=375_000_000 // TOKENS,
                final_fraction=0.1,
                decay_steps=260_000_000_000 // TOKENS,
            ),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=300_000_000_000 // TOKENS,
            clip_norm=1.0,
            loss_chunk=256,
            gradient_accumulation=8,  # parts of 64 rows
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
