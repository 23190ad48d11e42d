"""BERT base fine-tuned on SST-2 (the sentiment of film reviews), with the published recipe.

Devlin et al., BERT, https://arxiv.org/abs/1810.04805: section 3 (base: 12 layers, 768 wide, 12
heads) and appendix A.3 (batch 16 or 32, Adam at 5e-5, 3e-5 or 2e-5, 2 to 4 epochs, dropout 0.1);
warm-up over a tenth of the steps, linear decay and weight decay 0.01 are those of the released
code. Reported: 93.5 % accuracy on the test set; always answering "positive" is right 51 % of the
time on the development set. Longer rows are cut to 128 tokens, as the released code does.

GLUE's files and the pre-trained run are given on the command line:
--data.train SST-2/train.tsv --data.validation SST-2/dev.tsv --init-from DIR
Its tokenizer comes with it; without --init-from the weights are random and a vocabulary is made
from the training sentences. A run of configs/bert.py has a padded vocabulary: --model.vocab-size
30592
"""

from dataclasses import replace

from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import LabelledText
from jaxformer.models import Classification
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo import SYSTEMS

_STEPS = 3 * 67_349 // 32  # three epochs


def get_config() -> Config:
    return Config(
        model=replace(SYSTEMS["bert-base"].config, heads=(Classification(num_labels=2),)),
        data=LabelledText(
            train="SST-2/train.tsv",
            validation="SST-2/dev.tsv",
            text=("sentence",),
            label="label",
            tokenizer=TrainTokenizer(kind="wordpiece", vocab_size=30_522),
            sequence_length=128,
            truncate=True,
            batch_size=32,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=3e-5, warmup_steps=_STEPS // 10),
            weight_decay=0.01,
            beta1=0.9,
            beta2=0.999,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=_STEPS, clip_norm=1.0, eval_interval=500, checkpoint_interval=_STEPS
        ),
    )
