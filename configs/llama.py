"""Llama 1, 2, 3 and 3.2: configs/llama.py:llama3-8b (or llama-7b, llama2-70b, llama3.2-1b, ...).

All: AdamW, linear warm-up and a cosine. The betas (0.9, 0.95), weight decay 0.1 and clipping at 1
are in the papers of Llama 1 and 2; the paper of Llama 3 gives none of the three; they are those of
Llama 2.

- Llama 1, Touvron et al., https://arxiv.org/abs/2302.13971, table 2 and section 2.3: 4M tokens per
  step, 1.0T in all (7B, 13B) or 1.4T (33B, 65B), warm-up over 2000 steps, cosine to a tenth.
- Llama 2, Touvron et al., https://arxiv.org/abs/2307.09288, table 1 and section 2.2: rows of 4096,
  4M tokens per step, 2T in all, an epsilon of 1e-5, warm-up over 2000 steps, cosine to a tenth.
- Llama 3, https://arxiv.org/abs/2407.21783, table 3 (peak rates) and section 3.4.1, which describes
  405B and calls the recipes of 8B and 70B similar: warm-up over 8000 steps, cosine to a hundredth
  over 1.2M steps; 8M tokens per step in rows of 8192. llama3-405b-ramp has the stages of 405B: 4M
  tokens per step in rows of 4096 for 252M tokens, 8M up to 2.87T, then 16M; 15.6T tokens in all
  (section 1), so that it ends before its cosine does. The later stages of the paper, rows of up to
  131,072 tokens and linear decay to 0, are left to separate runs (--init-from).
- Llama 3.2: how the 1B and 3B were pruned from 8B and taught by 8B and 70B was not published beyond
  the 9T tokens of the model card; they have the recipe of Llama 3 8B.

Not published: Llama 1's length of rows, here the 2048 of the released models, and the epsilon of 1
and 3, here 1e-8.

By default it trains on the standard library with a newly trained tokenizer. For your own text with
the published vocabulary: --data.source JsonLines --data.source.path corpus/ --data.tokenizer
TokenizerFile --data.tokenizer.path llama3/tokenizer.json
"""

from dataclasses import replace
from typing import NamedTuple

from jaxformer.config import Config, TrainConfig
from jaxformer.data import DataConfig, Stage, TrainTokenizer
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo.recipes import choose


class Run(NamedTuple):
    """How a model is trained: rows have `length` tokens, and a step `rows` of them."""

    peak: float
    steps: int
    length: int
    rows: int
    warmup: int = 2000
    final: float = 0.1
    eps: float = 1e-8
    decay: int | None = None
    ramp: tuple[Stage, ...] = ()


STEP = 2048 * 2048  # tokens: "4M"
ONE = Run(3e-4, 10**12 // STEP, 2048, 2048)
TWO = Run(3e-4, 2 * 10**12 // STEP, 4096, 1024, eps=1e-5)
THREE = Run(3e-4, 1_200_000, 8192, 1024, warmup=8000, final=0.01)
STAGES = (
    Stage(1024, until_tokens=252_000_000, sequence_length=4096),
    Stage(1024, until_tokens=2_870_000_000_000),
)
RUNS = {
    "llama-7b": ONE,
    "llama-13b": ONE,
    "llama-33b": ONE._replace(peak=1.5e-4, steps=14 * 10**11 // STEP),
    "llama-65b": ONE._replace(peak=1.5e-4, steps=14 * 10**11 // STEP),
    "llama2-7b": TWO,
    "llama2-13b": TWO,
    "llama2-70b": TWO._replace(peak=1.5e-4),
    "llama3-8b": THREE,
    "llama3-70b": THREE._replace(peak=1.5e-4),
    "llama3-405b": THREE._replace(peak=8e-5),
    "llama3-405b-ramp": THREE._replace(
        peak=8e-5,
        steps=1_100_928,  # 60 and 342,101 of the stages, and the rest of 15.6T tokens
        rows=2048,
        decay=THREE.steps,
        ramp=STAGES,
    ),
    "llama3.2-1b": THREE._replace(steps=9 * 10**12 // (2 * STEP)),
    "llama3.2-3b": THREE._replace(steps=9 * 10**12 // (2 * STEP)),
}


def get_config(size: str = "llama3-8b") -> Config:
    system = size.removesuffix("-ramp") if size in RUNS else size
    model, run = choose("llama.py", system).config, RUNS[size]
    return Config(
        model=replace(model, remat="full"),
        data=DataConfig(
            tokenizer=TrainTokenizer(kind="bpe", vocab_size=32_000),
            sequence_length=run.length,
            batch_size=run.rows,
            ramp=run.ramp,
        ),
        optimizer=AdamW(
            schedule=Cosine(
                run.peak,
                warmup_steps=run.warmup,
                final_fraction=run.final,
                decay_steps=run.decay,
            ),
            weight_decay=0.1,
            beta1=0.9,
            beta2=0.95,
            eps=run.eps,
        ),
        train=TrainConfig(
            steps=run.steps,
            clip_norm=1.0,
            loss_chunk=1024,
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
