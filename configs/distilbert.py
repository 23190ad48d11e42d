"""DistilBERT, taught by BERT base: configs/distilbert.py:base.

Sanh et al., DistilBERT, https://arxiv.org/abs/1910.01108, sections 2 and 3: half of the teacher's
layers, which the student starts from; soft targets, masked tokens chosen anew each time and a
cosine between hidden states; batches of up to 4000 rows of 512 tokens on BERT's corpus. From the
released code: weights of 5, 2 and 1 for the three losses, temperature 2, Adam at 5e-4 with (0.9,
0.98) and an epsilon of 1e-6, warm-up over a twentieth of the steps, linear decay, no weight decay,
clipping at 5, 3 epochs, and which layers: 0, 2, 4, 7, 9, 11. An epoch is counted as BERT's 3.3
billion words here. The code chooses rare tokens more often for masking; here all are alike.

Train the teacher first (python train.py configs/bert.py:base); for another run give --init-from,
--train.distillation.teacher and --data.tokenizer.path RUN/tokenizer. By default both read the
standard library's text. Books and Wikipedia: --data.source TextFiles --data.source.path corpus/
"""

from dataclasses import replace

from jaxformer.config import Config, Distillation, TrainConfig
from jaxformer.data import DataConfig, MaskedLM, TokenizerFile
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose, padded

TEACHER = "runs/bert-base"
STEPS = 3 * 3_300_000_000 // (4096 * 512)


def get_config(size: str = "base") -> Config:
    model = choose("distilbert.py", size).config
    return Config(
        model=replace(model, vocab_size=padded(model.vocab_size), remat="full"),
        data=DataConfig(
            tokenizer=TokenizerFile(f"{TEACHER}/tokenizer"),
            objective=MaskedLM(),
            sequence_length=512,
            batch_size=4096,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-4, warmup_steps=STEPS // 20),
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.98,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=STEPS,
            clip_norm=5.0,
            distillation=Distillation(
                teacher=TEACHER,
                temperature=2.0,
                soft_weight=5.0,
                hard_weight=2.0,
                cosine_weight=1.0,
            ),
            gradient_accumulation=16,  # parts of 256 rows; more for fewer devices
            eval_interval=250,
            checkpoint_interval=250,
        ),
        mesh=MeshConfig(fsdp=-1),
        init_from=TEACHER,
        init_layers=(0, 2, 4, 7, 9, 11),
    )
