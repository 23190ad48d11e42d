"""GPT, GPT-2 and GPT-3: learned positions, layer norm, biases everywhere."""

from jaxformer.functional.norms import LayerNorm
from jaxformer.functional.positional_schemes import Learned
from jaxformer.models import DecoderConfig
from jaxformer.nn import PostNorm
from jaxformer.zoo.system import System


def gpt(num_layers: int, model_dim: int, num_heads: int, **changes) -> DecoderConfig:
    """The architecture of GPT-2 in any size."""
    fields = {
        "vocab_size": 50257,
        "num_layers": num_layers,
        "model_dim": model_dim,
        "num_heads": num_heads,
        "mlp_dim": 4 * model_dim,
        "position": Learned(max_length=1024),
        "norm": LayerNorm(eps=1e-5),
        "activation": "gelu_tanh",
        "gated": False,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
    }
    return DecoderConfig(**(fields | changes))


_GPT = "Radford et al., 2018, section 4.1 (117M in GPT-2's release notes)"
# The GPT-2 paper's own counts (117M, 345M, 762M, 1542M) were corrected with the release.
_GPT2 = "Radford et al., 2019, table 2, corrected in https://github.com/openai/gpt-2"
_GPT3 = "Brown et al., 2020, table 2.1, https://arxiv.org/abs/2005.14165"


def gpt3(num_layers: int, model_dim: int, num_heads: int) -> DecoderConfig:
    """GPT-3 with dense attention in every layer; the paper alternates it with a sparse pattern."""
    return gpt(num_layers, model_dim, num_heads, position=Learned(max_length=2048))


SYSTEMS = (
    System(
        "gpt",
        "gpt.py:117m",
        gpt(12, 768, 12, vocab_size=40478, position=Learned(max_length=512), residual=PostNorm()),
        "117M",
        _GPT,
    ),
    System("gpt2-small", "gpt2.py:small", gpt(12, 768, 12), "124M", _GPT2),
    System("gpt2-medium", "gpt2.py:medium", gpt(24, 1024, 16), "355M", _GPT2),
    System("gpt2-large", "gpt2.py:large", gpt(36, 1280, 20), "774M", _GPT2),
    System("gpt2-xl", "gpt2.py:xl", gpt(48, 1600, 25), "1558M", _GPT2),
    System("gpt3-small", "gpt3.py:small", gpt3(12, 768, 12), "125M", _GPT3),
    System("gpt3-medium", "gpt3.py:medium", gpt3(24, 1024, 16), "350M", _GPT3),
    System("gpt3-large", "gpt3.py:large", gpt3(24, 1536, 16), "760M", _GPT3),
    # The table says 24 heads of 128, which are wider than 2048: 16 give the published count.
    System("gpt3-xl", "gpt3.py:xl", gpt3(24, 2048, 16), "1.3B", _GPT3),
    System("gpt3-2.7b", "gpt3.py:2.7b", gpt3(32, 2560, 32), "2.7B", _GPT3),
    System("gpt3-6.7b", "gpt3.py:6.7b", gpt3(32, 4096, 32), "6.7B", _GPT3),
    # The table says 5140, which its 40 heads of 128 do not fill.
    System("gpt3-13b", "gpt3.py:13b", gpt3(40, 5120, 40), "13B", _GPT3),
    System("gpt3-175b", "gpt3.py:175b", gpt3(96, 12288, 96), "175B", _GPT3),
)
