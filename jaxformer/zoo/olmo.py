"""OLMo 2: Llama with its norms after the sublayers, and over all queries and keys of a token."""

from functools import partial

from jaxformer.functional.norms import RMSNorm
from jaxformer.hub.fields import Activation, ConfigMap, NormEps
from jaxformer.hub.model_format import ModelFormat
from jaxformer.hub.rope import Rope
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.nn import BranchNorm
from jaxformer.zoo.common.decoders import classes
from jaxformer.zoo.common.llama_like import BIASES, DEFAULTS, FIELDS, FILES, llama, names

FORMATS = (
    ModelFormat(
        model_type="olmo2",
        config_map=ConfigMap(
            partial(llama, residual=BranchNorm(), query_key_norm_over="all_heads"),
            (
                *FIELDS,
                NormEps(theirs="rms_norm_eps", make=RMSNorm, also=("query_key_norm",)),
                Rope(),
                Activation(default="silu"),
                BIASES,
            ),
        ),
        weight_map=lambda config: WeightMap(
            names("post_attention_layernorm", "post_feedforward_layernorm")
        ),
        architectures=classes("Olmo2", without=("ForTokenClassification", "ForQuestionAnswering")),
        defaults={**DEFAULTS, "vocab_size": 50304, "rms_norm_eps": 1e-5, "pad_token_id": 1},
        **FILES,
    ),
)
