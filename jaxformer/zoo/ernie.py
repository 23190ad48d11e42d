"""ERNIE: BERT that masks entities and phrases; later versions add a table of task types."""

from jaxformer.functional.positional_schemes import Learned
from jaxformer.models import MaskedLanguageModel
from jaxformer.zoo.bert import bert
from jaxformer.zoo.system import System

SYSTEMS = (
    System(
        "ernie-2.0-base-en",
        "ernie.py:2.0-base-en",
        bert(12, 768, 12, token_types=4, heads=(MaskedLanguageModel(),)),
        "110M",
        "Sun et al., 2019, pre-training settings (the sizes of BERT), https://arxiv.org/abs/1907.12412",
    ),
    System(
        "ernie-3.0-base-zh",
        "ernie.py:3.0-base-zh",
        bert(
            12,
            768,
            12,
            vocab_size=40000,
            position=Learned(max_length=2048),
            token_types=4,
            task_types=3,
            heads=(MaskedLanguageModel(),),
        ),
        "118M",
        "the released checkpoint; Sun et al., 2021, https://arxiv.org/abs/2107.02137",
    ),
)
