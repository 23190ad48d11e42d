"""Whisper, trained from scratch: configs/whisper.py:tiny (or base, small, medium, large).

Radford et al., Robust Speech Recognition via Large-Scale Weak Supervision,
https://arxiv.org/abs/2212.04356. The shapes are table 1's, those of the released checkpoints. The
constants of appendix F are given from memory, so compare them with the paper before a run depends
on them: 2^20 updates of 256 windows of 30 seconds, AdamW with (0.9, 0.98), eps 1e-6 and weight
decay 0.1, gradients clipped at 1, warm-up over 2048 updates, linear decay to 0, and a rate for each
size. Their weights are initialized with deviations that depend on the layer; here it is 0.02 for
all.

A clip is one window with one text. The paper's timestamps, silent windows, detection of the
language and texts before the window are not learnt here, nor several languages in one run: the
prefix below is that of English with the published vocabulary, whose folder goes on the command line
with the table: --data.tokenizer.path whisper-tiny --data.train clips.parquet
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data import TokenizerFile
from jaxformer.data.tasks import SpeechToText
from jaxformer.distributed import MeshConfig
from jaxformer.optim import AdamW, Linear
from jaxformer.zoo.recipes import choose, padded

RATES = {"tiny": 1.5e-3, "base": 1e-3, "small": 5e-4, "medium": 2.5e-4, "large": 1.75e-4}
ENGLISH = (50258, 50259, 50359, 50363)
"""<|startoftranscript|>, <|en|>, <|transcribe|>, <|notimestamps|>"""


def get_config(size: str = "tiny") -> Config:
    model = choose("whisper.py", size).config
    return Config(
        model=model.with_fields(vocab_size=padded(model.vocab_size), remat="full"),
        data=SpeechToText(
            train="clips.parquet",
            tokenizer=TokenizerFile("whisper-tiny"),
            prefix=ENGLISH,
            batch_size=256,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=RATES[size], warmup_steps=2048),
            weight_decay=0.1,
            beta2=0.98,
            eps=1e-6,
        ),
        train=TrainConfig(
            steps=2**20,
            clip_norm=1.0,
            gradient_accumulation=4,  # more for fewer devices
            eval_interval=1000,
            checkpoint_interval=1000,
        ),
        mesh=MeshConfig(fsdp=-1),
    )
