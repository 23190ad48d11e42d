"""GPT, 117M parameters: configs/gpt.py.

Radford et al., Improving Language Understanding by Generative Pre-Training (2018), section 4.1:
Adam at 2.5e-4, warm-up over 2000 steps, cosine to 0, batches of 64 x 512 tokens, 100 epochs,
dropout 0.1 everywhere, weight decay 0.01, initial weights of 0.02.

Not published: Adam's betas, here (0.9, 0.999), clipping, here at 1, and how many steps 100 epochs
are; with the 800 million words of BooksCorpus counted as tokens they are 2.4 million.

By default it reads the standard library's text with a newly trained tokenizer. Books with the
published vocabulary: --data.source TextFiles --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path openai-gpt/tokenizer.json
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose, padded


def get_config(size: str = "117m") -> Config:
    model = choose("gpt.py", size).config
    return Config(
        model=replace(
            model,
            vocab_size=padded(model.vocab_size),
            dropout=0.1,
            self_attention=replace(model.self_attention, dropout=0.1),
            depth_scaled_init=False,
        ),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=model.vocab_size),
            sequence_length=512,
            batch_size=64,
        ),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=2.5e-4, warmup_steps=2000, final_fraction=0.0),
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.999,
        ),
        train=TrainConfig(
            steps=100 * 800_000_000 // (64 * 512),
            clip_norm=1.0,
            loss_chunk=128,
            eval_interval=5000,
            checkpoint_interval=5000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
