"""Supervised fine-tuning: a language model learns the answers of conversations.

The checkpoint gives the model, the tokenizer and the chat template:
--init-from HF_DIR --data.train chat.jsonl

A row of the file is a conversation as messages, ShareGPT, alpaca, or prompt and completion. A
checkpoint without a chat template takes a named one: --data.template ChatML. Rows are as long as
the checkpoint's positions, 2048 tokens at most: --data.sequence-length 4096 makes them longer, and
longer conversations are cut (--data.too-long drop leaves them out).

The optimizer's settings are those of TRL's and the alignment handbook's recipes: AdamW at 2e-5
without weight decay, a cosine to zero, three epochs. Adapters (--train.lora LoRA) take ten times
the learning rate, 2e-4.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.chat import ChatData
from jaxformer.optim import AdamW, Cosine


def get_config() -> Config:
    return Config(
        data=ChatData(train="chat.jsonl", too_long="cut", batch_size=16),
        optimizer=AdamW(
            schedule=Cosine(learning_rate=2e-5, warmup_steps=None, final_fraction=0.0),
            weight_decay=0.0,
            beta1=0.9,
            beta2=0.999,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=100, checkpoint_interval=500),
    )
