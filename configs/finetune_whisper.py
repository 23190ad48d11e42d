"""A Whisper fine-tuned to transcribe one language, or to translate it to English.

The model, its tokenizer and its spectrograms are those of the checkpoint. Name it, the language and
a table of sounds and texts on the command line:
--init-from HF_DIR --data.language en --data.train clips.parquet

The table has a column "audio" (or "path", "file") with paths relative to its folder, or in Parquet
the sounds themselves, and a column "text" (or "sentence", "transcription"), which is learnt as it
is. A clip has at most 30 seconds. An English model such as tiny.en takes no language. Translations:
--data.task translate

Radford et al., Whisper, https://arxiv.org/abs/2212.04356: section 2.3 (the loss counts all tokens
after the start), appendix F (AdamW with beta2 0.98 and eps 1e-6, gradients of norm 1, linear
decay). The rate is that of transformers' example of fine-tuning,
examples/pytorch/speech-recognition (run_speech_recognition_seq2seq.py): 1e-5, with a tenth of the
steps as warm-up, batches of 16 and no weight decay. At the end the model writes a transcript for
every validation clip, greedily, and its word and character error rates are printed; `python -m
jaxformer evaluate RUN_DIR` measures them again.
"""

from jaxformer.config import Config, TrainConfig
from jaxformer.data.tasks import SpeechToText
from jaxformer.optim import AdamW, Linear


def get_config() -> Config:
    return Config(
        data=SpeechToText(
            train="clips.parquet",
            batch_size=16,
            validation_fraction=0.1,
            max_validation_batches=None,
        ),
        optimizer=AdamW(
            schedule=Linear(learning_rate=1e-5, warmup_steps=None),
            weight_decay=0.0,
            beta2=0.98,
            eps=1e-6,
        ),
        train=TrainConfig(steps=None, epochs=3, eval_interval=500, checkpoint_interval=500),
    )
