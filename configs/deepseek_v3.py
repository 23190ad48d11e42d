"""DeepSeek-V3, 256 experts, eight for each token: configs/deepseek_v3.py:671b.

Sizes and recipe: DeepSeek-AI, DeepSeek-V3 Technical Report, https://arxiv.org/abs/2412.19437,
section 4.2: AdamW, peak 2.2e-4, warm-up over 2000 steps, 14.8T tokens in rows of 4096 and, at the
end, 15360 rows of them per step, weight 0.0001 of the balancing loss. There the rate stays for 10T
tokens and falls along a cosine to a tenth over 4.3T, the rows grow from 3072, the biases of the
router balance the load, and a module predicts a second token; here the rate falls along a cosine
from the start, all steps have the final number of rows, the biases stay as they are, the balancing
loss is that of all layers, and RoPE is stretched by YaRN from the start, as in the released
checkpoint.

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path deepseek_v3/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


def get_config(size: str = "671b") -> Config:
    model = choose("deepseek_v3.py", size).config
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=32_000),
            sequence_length=4096,
            batch_size=15360,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=2.2e-4, warmup_steps=2000, final_fraction=0.1),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=1e-8,
        ),
        train=TrainConfig(
            steps=148 * 10**11 // (15360 * 4096),
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
