"""BERT."""

from jaxformer.functional.positional_schemes import Learned
from jaxformer.models import Classification, EncoderConfig, MaskedLanguageModel
from jaxformer.zoo.system import System

_SOURCE = "Devlin et al., 2018, section 3, https://arxiv.org/abs/1810.04805"


def bert(num_layers: int, model_dim: int, num_heads: int, **changes) -> EncoderConfig:
    """The architecture in any size, with the heads of its pre-training."""
    fields = {
        "vocab_size": 30522,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "position": Learned(max_length=512),
        "token_types": 2,
        "pooler": "tanh",
        "heads": (MaskedLanguageModel(), Classification(label="next_sentence")),
    }
    return EncoderConfig(**(fields | changes))


SYSTEMS = (
    System("bert-base", "bert.py:base", bert(12, 768, 12), "110M", _SOURCE),
    System("bert-large", "bert.py:large", bert(24, 1024, 16), "340M", _SOURCE),
)
