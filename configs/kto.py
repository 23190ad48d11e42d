"""Kahneman-Tversky optimisation (KTO): answers that are desirable or not, without pairs.

    python train.py configs/kto.py --init-from runs/sft --data.train judged.jsonl

A row of the data has "prompt", "completion", each a text or a list of messages, and "label": true
for a desirable answer, false for others. The model, its tokenizer and its chat template are those
of `--init-from`, a run or a Hugging Face checkpoint. It is the reference too: its log-probabilities
of all answers are computed once, before the first step, and kept in the run's folder. Another
reference: --train.preference.reference DIR.

If one kind of answers is more frequent, weigh them: --train.preference.undesirable-weight 3 for
three desirable answers to an undesirable one. A step needs several rows, because the divergence
from the reference is a mean over them. Adapters, whose learning rate is ten times as high:
--train.lora LoRA.

The learning rate, a peak of 5e-7 after a tenth of the run and linear decay to 0, and beta are in
the range that the paper advises (https://arxiv.org/abs/2402.01306, section 4).
"""

from jaxformer.config import KTO, Config, TrainConfig
from jaxformer.data.chat import UnpairedPreferenceData
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        model=None,
        data=UnpairedPreferenceData(too_long="cut", batch_size=32),
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
            preference=KTO(beta=0.1),
        ),
    )
