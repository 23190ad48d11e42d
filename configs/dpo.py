"""Direct preference optimisation (DPO) of a model that was fine-tuned on chats.

    python train.py configs/dpo.py --init-from runs/sft --data.train preferences.jsonl

A row of the data has "prompt", "chosen" and "rejected", each a text or a list of messages; without
a prompt it is the common beginning of both conversations. The model, its tokenizer and its chat
template are those of `--init-from`, a run or a Hugging Face checkpoint. It is the reference too:
its log-probabilities of all answers are computed once, before the first step, and kept in the run's
folder. Another reference: --train.preference.reference DIR.

IPO instead: --train.preference.loss-type ipo. Noisy preferences: --train.preference.label-smoothing
0.1. Adapters, whose learning rate is ten times as high: --train.lora LoRA.

The learning rate, a peak of 5e-7 after a tenth of the run and linear decay to 0, and beta are those
of Zephyr (https://arxiv.org/abs/2310.16944), which took one to three passes over its 61,000 pairs.
"""

from jaxformer.config import DPO, Config, TrainConfig
from jaxformer.data.chat import PreferenceData
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        model=None,
        data=PreferenceData(too_long="cut", batch_size=16),
        optimizer=AdamW(
            schedule=Linear(learning_rate=5e-7, warmup_steps=None),
            weight_decay=0.0,
            beta2=0.999,
        ),
        train=TrainConfig(
            steps=None,
            epochs=1,
            eval_interval=100,
            checkpoint_interval=200,
            preference=DPO(beta=0.1),
        ),
    )
