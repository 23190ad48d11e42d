"""The published systems: every one is there, and has the parameters that its authors give."""

import re
from dataclasses import replace
from functools import cache
from math import prod

import pytest

from jaxformer.cli import main as cli
from jaxformer.functional import Learned
from jaxformer.models import AbstractModel
from jaxformer.zoo import SYSTEMS

pytestmark = pytest.mark.more

each_system = pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS.keys())
# The last size of each, by the first word of its name.
ONE_OF_EACH = {name.partition("-")[0]: name for name in SYSTEMS}

# The published counts ---------------------------------------------------------------------------

# What authors counted, where it is not the model as it is trained here.
COUNTED = {
    # Two layers (36M) or half the width (28M) leave 41,000 rows for the table of base.
    "transformer-base": {"vocab_size": 41_000},
    "transformer-big": {"vocab_size": 36_000},
    # One of the two tables over the vocabulary.
    "phi-1.5": {"tie_embeddings": True},
    # The padded vocabulary of table 1.
    "gemma-2b": {"vocab_size": 256_128},
    # With a separate output table.
    "t5-large": {"tie_embeddings": False},
    # Without the embedding table.
    "command-r7b": {"vocab_size": 1},
    # Without the output table.
    "eurobert-210m": {"tie_embeddings": True},
    "eurobert-610m": {"tie_embeddings": True},
    "eurobert-2.1b": {"tie_embeddings": True},
    # The encoder alone.
    "vit-mae-base": {"heads": ()},
    # Patches of 32 x 32.
    "vit-large-16": {"patch_size": (32, 32), "position": Learned(max_length=1 + 7 * 7)},
}


def shapes_of(config):
    return {n: x.shape for n, x in AbstractModel(config.build).shapes.items()}


@cache
def parameters_of(name):
    return SYSTEMS[name].count_parameters()


def counted(system):
    """The parameters that the authors counted."""
    if system.name == "gpt-j-6b":
        # Eight shards, each with the norms and output biases of all blocks, the final norm, and a
        # bias of the embedding.
        width, layers = system.config.model_dim, system.config.num_layers
        return parameters_of(system.name) + 7 * (3 * layers + 2) * width + 8 * width
    if system.name == "vit-22b":
        # The matrices of the blocks.
        shapes = shapes_of(system.config)
        return sum(prod(shapes[n]) for n in shapes if "sublayers" in n and n.endswith("kernel"))
    if system.note.startswith("without the table of tokens"):
        own = {"embedding.table", "heads.masked_language_model.bias"}
        shapes = shapes_of(system.config)
        return sum(prod(shape) for name, shape in shapes.items() if name not in own)
    if system.note.startswith("blocks and embeddings of the images"):
        image = system.config.parts.get("image", system.config)
        return sum(map(prod, shapes_of(replace(image, pooler=None)).values()))
    if system.note.startswith("with the head that predicts units"):
        # Codes of 500 clusters and four special symbols, and a projection to their width; the
        # transcript's head is not counted.
        width = {"hubert-large": 768, "hubert-xlarge": 1024}[system.name]
        body = sum(map(prod, shapes_of(replace(system.config, heads=())).values()))
        return body + (system.config.model_dim + 1) * width + 504 * width
    if system.name in COUNTED:
        return sum(map(prod, shapes_of(replace(system.config, **COUNTED[system.name])).values()))
    return parameters_of(system.name)


def read_count(text):
    """A published number, and one unit of its last significant digit: "340M" is 34 x 10M."""
    digits, scale = re.fullmatch(r"([\d.,]+)([MB]?)", text).groups()
    scale = {"M": 10**6, "B": 10**9, "": 1}[scale]
    whole, _, decimals = digits.replace(",", "").partition(".")
    zeros = 0 if decimals or scale == 1 else len(whole) - len(whole.rstrip("0"))
    return float(digits.replace(",", "")) * scale, scale * 10 ** (zeros - len(decimals))


def test_a_published_count_is_as_precise_as_it_is_written():
    assert read_count("340M") == (340e6, 10**7)
    assert read_count("1.23B") == (1.23e9, 10**7)
    assert read_count("13.0B") == (13e9, 10**8)
    assert read_count("2,775,208,960") == (2_775_208_960, 1)


@each_system
@pytest.mark.quick(*ONE_OF_EACH.values())
def test_the_parameters_are_as_many_as_published(system):
    published, unit = read_count(system.published)
    # Some authors round the last digit, others cut what follows it.
    assert abs(counted(system) - published) < unit
    assert system.source
    as_it_is = abs(parameters_of(system.name) - published) < unit
    assert as_it_is == (not system.note)


def test_every_named_system_is_there():
    named = (
        "transformer bert roberta distilbert albert ernie gpt gpt2 gpt3 gpt-j pythia llama llama2 "
        "llama3 llama3.2 mistral phi gemma t5 t5-v1.1 mt5 byt5 bart vit clip siglip siglip2 "
        "blenderbot xglm deberta deberta-v2 deberta-v3 mdeberta"
    )
    for start in named.split():
        assert any(name == start or name.startswith(f"{start}-") for name in SYSTEMS), start


# Counts of transformers -------------------------------------------------------------------------


def bert_like(layers, width, heads, **more):
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    return sizes | {"intermediate_size": 4 * width} | more


def llama_like(layers, width, heads, kv_heads, inner, vocabulary, **more):
    sizes = bert_like(layers, width, heads, num_key_value_heads=kv_heads, vocab_size=vocabulary)
    return sizes | {"intermediate_size": inner} | more


def t5_like(layers, width, heads, head, inner, **more):
    sizes = {"num_layers": layers, "d_model": width, "num_heads": heads}
    return sizes | {"d_kv": head, "d_ff": inner} | more


def esm2(layers, width, heads):
    ids = {"vocab_size": 33, "mask_token_id": 32, "pad_token_id": 1}
    return bert_like(layers, width, heads, position_embedding_type="rotary", **ids)


def gpt2_like(layers, width, heads):
    return {"n_layer": layers, "n_embd": width, "n_head": heads}


def bart_like(layers, width, heads):
    sides = ("encoder", "decoder")
    sizes = {f"{side}_layers": layers for side in sides}
    sizes |= {f"{side}_ffn_dim": 4 * width for side in sides}
    return sizes | {f"{side}_attention_heads": heads for side in sides} | {"d_model": width}


ROBERTA = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
ERNIE = {"type_vocab_size": 4, "max_position_embeddings": 512, "vocab_size": 30522}
ERNIE3 = {"type_vocab_size": 4, "max_position_embeddings": 2048, "vocab_size": 40000}
ERNIE3 |= {"use_task_id": True, "task_type_vocab_size": 3}
DEBERTA = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
DEBERTA |= {"position_biased_input": False}
DEBERTA_V2 = DEBERTA | {"position_buckets": 256, "share_att_key": True}
DEBERTA_V2 |= {"norm_rel_ebd": "layer_norm"}
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}
T5_SIZES = {
    "small": (8, 512, 6, 64, 1024),
    "base": (12, 768, 12, 64, 2048),
    "large": (24, 1024, 16, 64, 2816),
    "xl": (24, 2048, 32, 64, 5120),
    "xxl": (24, 4096, 64, 64, 10240),
}
GATED = {"feed_forward_proj": "gated-gelu"}
DINOV3 = {"num_register_tokens": 4}
THEIRS = {
    "bert-base": ("BertForPreTraining", {}),
    "bert-large": ("BertForPreTraining", bert_like(24, 1024, 16)),
    "roberta-base": ("RobertaForMaskedLM", ROBERTA),
    "roberta-large": ("RobertaForMaskedLM", bert_like(24, 1024, 16, **ROBERTA)),
    "camembert-base": ("CamembertForMaskedLM", ROBERTA | {"vocab_size": 32005}),
    "xlm-roberta-xl": ("XLMRobertaXLForMaskedLM", {}),
    "xlm-roberta-xxl": ("XLMRobertaXLForMaskedLM", bert_like(48, 4096, 32)),
    "eurobert-210m": ("EuroBertForMaskedLM", {}),
    "eurobert-610m": ("EuroBertForMaskedLM", llama_like(26, 1152, 18, 6, 4096, 128256)),
    "eurobert-2.1b": ("EuroBertForMaskedLM", llama_like(32, 2304, 18, 6, 6144, 128256)),
    "nomic-embed-text-v1.5": ("NomicBertModel", {}),
    "esm2-8m": ("EsmForMaskedLM", esm2(6, 320, 20)),
    "esm2-150m": ("EsmForMaskedLM", esm2(30, 640, 20)),
    "esm2-650m": ("EsmForMaskedLM", esm2(33, 1280, 20)),
    "esm2-3b": ("EsmForMaskedLM", esm2(36, 2560, 40)),
    "esm2-15b": ("EsmForMaskedLM", esm2(48, 5120, 40)),
    "distilbert-base": ("DistilBertForMaskedLM", {}),
    "albert-base": ("AlbertForPreTraining", bert_like(12, 768, 12)),
    "albert-large": ("AlbertForPreTraining", bert_like(24, 1024, 16)),
    "albert-xlarge": ("AlbertForPreTraining", bert_like(24, 2048, 16)),
    "albert-xxlarge": ("AlbertForPreTraining", {}),
    "ernie-2.0-base-en": ("ErnieForMaskedLM", ERNIE),
    "ernie-3.0-base-zh": ("ErnieForMaskedLM", ERNIE3),
    "gpt": ("OpenAIGPTLMHeadModel", {}),
    "gpt2-small": ("GPT2LMHeadModel", {}),
    "gpt2-medium": ("GPT2LMHeadModel", gpt2_like(24, 1024, 16)),
    "gpt2-large": ("GPT2LMHeadModel", gpt2_like(36, 1280, 20)),
    "gpt2-xl": ("GPT2LMHeadModel", gpt2_like(48, 1600, 25)),
    "gpt-j-6b": ("GPTJForCausalLM", {}),
    "pythia-70m": ("GPTNeoXForCausalLM", bert_like(6, 512, 8, vocab_size=50304)),
    "pythia-160m": ("GPTNeoXForCausalLM", bert_like(12, 768, 12, vocab_size=50304)),
    "pythia-410m": ("GPTNeoXForCausalLM", bert_like(24, 1024, 16, vocab_size=50304)),
    "pythia-1b": ("GPTNeoXForCausalLM", bert_like(16, 2048, 8, vocab_size=50304)),
    "pythia-1.4b": ("GPTNeoXForCausalLM", bert_like(24, 2048, 16, vocab_size=50304)),
    "pythia-2.8b": ("GPTNeoXForCausalLM", bert_like(32, 2560, 32, vocab_size=50304)),
    "pythia-6.9b": ("GPTNeoXForCausalLM", bert_like(32, 4096, 32, vocab_size=50432)),
    "pythia-12b": ("GPTNeoXForCausalLM", bert_like(36, 5120, 40, vocab_size=50688)),
    "llama-7b": ("LlamaForCausalLM", {}),
    "llama-13b": ("LlamaForCausalLM", llama_like(40, 5120, 40, 40, 13824, 32000)),
    "llama-33b": ("LlamaForCausalLM", llama_like(60, 6656, 52, 52, 17920, 32000)),
    "llama-65b": ("LlamaForCausalLM", llama_like(80, 8192, 64, 64, 22016, 32000)),
    "llama2-7b": ("LlamaForCausalLM", {}),
    "llama2-13b": ("LlamaForCausalLM", llama_like(40, 5120, 40, 40, 13824, 32000)),
    "llama2-70b": ("LlamaForCausalLM", llama_like(80, 8192, 64, 8, 28672, 32000)),
    "llama3-8b": ("LlamaForCausalLM", llama_like(32, 4096, 32, 8, 14336, 128256)),
    "llama3-70b": ("LlamaForCausalLM", llama_like(80, 8192, 64, 8, 28672, 128256)),
    "llama3-405b": ("LlamaForCausalLM", llama_like(126, 16384, 128, 8, 53248, 128256)),
    "llama3.2-1b": (
        "LlamaForCausalLM",
        llama_like(16, 2048, 32, 8, 8192, 128256, tie_word_embeddings=True),
    ),
    "llama3.2-3b": (
        "LlamaForCausalLM",
        llama_like(28, 3072, 24, 8, 8192, 128256, tie_word_embeddings=True),
    ),
    "mistral-7b": ("MistralForCausalLM", {}),
    "phi-1.5": ("PhiForCausalLM", {}),
    "phi-2": ("PhiForCausalLM", bert_like(32, 2560, 32)),
    "gemma-2b": ("GemmaForCausalLM", llama_like(18, 2048, 8, 1, 16384, 256000)),
    "olmo3-7b": ("Olmo3ForCausalLM", {"vocab_size": 100_278}),
    "olmo3-32b": ("Olmo3ForCausalLM", llama_like(64, 5120, 40, 8, 27648, 100_278)),
    "smollm3-3b": ("SmolLM3ForCausalLM", {}),
    "granite-3.0-2b": (
        "GraniteForCausalLM",
        llama_like(40, 2048, 32, 8, 8192, 49155, tie_word_embeddings=True),
    ),
    "granite-3.0-8b": (
        "GraniteForCausalLM",
        llama_like(40, 4096, 32, 8, 12800, 49155, tie_word_embeddings=True),
    ),
    "command-r-35b": ("CohereForCausalLM", {}),
    "command-r-plus-104b": (
        "CohereForCausalLM",
        llama_like(64, 12288, 96, 8, 33792, 256_000, use_qk_norm=True),
    ),
    "command-r7b": ("Cohere2ForCausalLM", llama_like(32, 4096, 32, 8, 14336, 256_000)),
    "starcoder2-3b": ("Starcoder2ForCausalLM", {}),
    "starcoder2-7b": ("Starcoder2ForCausalLM", llama_like(32, 4608, 36, 4, 18432, 49152)),
    "glm-4-9b": ("GlmForCausalLM", {}),
    "glm-4-9b-0414": ("Glm4ForCausalLM", {}),
    "glm-4-32b-0414": (
        "Glm4ForCausalLM",
        llama_like(61, 6144, 48, 2, 23040, 151_552, attention_bias=False),
    ),
    "ernie-4.5-0.3b": ("Ernie4_5ForCausalLM", {}),
    "t5gemma-2b-2b": ("T5GemmaForConditionalGeneration", {}),
    "t5gemma-9b-2b": (
        "T5GemmaForConditionalGeneration",
        {"encoder": llama_like(42, 3584, 16, 8, 14336, 256_000)},
    ),
    "t5-small": ("T5ForConditionalGeneration", {}),
    "t5-base": ("T5ForConditionalGeneration", t5_like(12, 768, 12, 64, 3072)),
    "t5-large": ("T5ForConditionalGeneration", t5_like(24, 1024, 16, 64, 4096)),
    "t5-3b": ("T5ForConditionalGeneration", t5_like(24, 1024, 32, 128, 16384)),
    "t5-11b": ("T5ForConditionalGeneration", t5_like(24, 1024, 128, 128, 65536)),
    "byt5-small": (
        "T5ForConditionalGeneration",
        t5_like(12, 1472, 6, 64, 3584, num_decoder_layers=4, vocab_size=384, **GATED),
    ),
    "byt5-xxl": (
        "T5ForConditionalGeneration",
        t5_like(36, 4672, 64, 64, 12352, num_decoder_layers=12, vocab_size=384, **GATED),
    ),
    "deberta-base": ("DebertaForMaskedLM", DEBERTA),
    "deberta-large": ("DebertaForMaskedLM", bert_like(24, 1024, 16, **DEBERTA)),
    "deberta-xlarge": ("DebertaForMaskedLM", bert_like(48, 1024, 16, **DEBERTA)),
    "deberta-v2-xlarge": ("DebertaV2ForMaskedLM", DEBERTA_V2 | CONVOLUTION),
    "deberta-v2-xxlarge": (
        "DebertaV2ForMaskedLM",
        DEBERTA_V2 | CONVOLUTION | {"num_hidden_layers": 48},
    ),
    "deberta-v3-xsmall": ("DebertaV2ForMaskedLM", bert_like(12, 384, 6, **DEBERTA_V2)),
    "deberta-v3-small": ("DebertaV2ForMaskedLM", bert_like(6, 768, 12, **DEBERTA_V2)),
    "deberta-v3-base": ("DebertaV2ForMaskedLM", bert_like(12, 768, 12, **DEBERTA_V2)),
    "deberta-v3-large": ("DebertaV2ForMaskedLM", bert_like(24, 1024, 16, **DEBERTA_V2)),
    "mdeberta-v3-base": (
        "DebertaV2ForMaskedLM",
        bert_like(12, 768, 12, vocab_size=251000, **DEBERTA_V2),
    ),
    "bigbird-roberta-base": ("BigBirdForPreTraining", {}),
    "bigbird-roberta-large": ("BigBirdForPreTraining", bert_like(24, 1024, 16)),
    "bart-base": ("BartForConditionalGeneration", bart_like(6, 768, 12)),
    "bart-large": ("BartForConditionalGeneration", {}),
    "blenderbot-400m-distill": (
        "BlenderbotForConditionalGeneration",
        bart_like(12, 1280, 32) | {"encoder_layers": 2},
    ),
    "blenderbot-3b": ("BlenderbotForConditionalGeneration", {}),
    "blenderbot-small-90m": ("BlenderbotSmallForConditionalGeneration", {"vocab_size": 54944}),
    "xglm-564m": ("XGLMForCausalLM", {}),
    "xglm-1.7b": ("XGLMForCausalLM", {"d_model": 2048, "ffn_dim": 8192}),
    "xglm-4.5b": ("XGLMForCausalLM", {"d_model": 2048, "ffn_dim": 16384, "num_layers": 48}),
    "vit-base-16": ("ViTForImageClassification", {"num_labels": 1000}),
    "vit-large-16": ("ViTForImageClassification", bert_like(24, 1024, 16, num_labels=1000)),
    "vit-huge-14": (
        "ViTForImageClassification",
        bert_like(32, 1280, 16, num_labels=1000, patch_size=14),
    ),
    "dinov3-vits16": ("DINOv3ViTModel", DINOV3),
    "dinov3-vitl16": ("DINOv3ViTModel", DINOV3 | bert_like(24, 1024, 16)),
    "dinov3-vith16plus": (
        "DINOv3ViTModel",
        DINOV3 | bert_like(32, 1280, 20, use_gated_mlp=True, hidden_act="silu"),
    ),
    "vit-mae-base": ("ViTMAEForPreTraining", {}),
    "clip-vit-base-patch32-text": ("CLIPTextModelWithProjection", {}),
    "clip-vit-base-patch32-vision": ("CLIPVisionModelWithProjection", {}),
    "siglip-base-patch16-224-text": ("SiglipTextModel", {}),
    "siglip-base-patch16-224-vision": ("SiglipVisionModel", {}),
    "siglip2-base-patch16-naflex": (
        "Siglip2Model",
        {"text_config": {"vocab_size": 256_000, "num_hidden_layers": 12}},
    ),
    "siglip2-base-patch16-naflex-vision": ("Siglip2VisionModel", {}),
}
for _size, _shape in T5_SIZES.items():
    THEIRS[f"t5-v1.1-{_size}"] = ("T5ForConditionalGeneration", t5_like(*_shape, **GATED))
    THEIRS[f"mt5-{_size}"] = ("MT5ForConditionalGeneration", t5_like(*_shape))
    for _kind in ("local", "transient-global"):
        _name = f"long-t5-{_kind.replace('transient-', 't')}-{_size}"
        _class = "LongT5ForConditionalGeneration"
        if _name in SYSTEMS:
            THEIRS[_name] = (_class, t5_like(*_shape, **GATED, encoder_attention_type=_kind))


def ours_alone(config, name):
    """The parameters that our model has and the Hugging Face model lacks."""
    if name.startswith(("bart", "blenderbot")):
        # A bias of the logits, which is a buffer there and not a parameter.
        return config.vocab_size
    if name.startswith(("t5-v1.1", "mt5", "byt5", "long-t5")):
        # Their fifth version ties the output table, which is separate in the authors' models.
        return config.model_dim * config.vocab_size
    return 0


@pytest.mark.torch
@pytest.mark.parametrize("name", THEIRS)
def test_the_parameters_are_as_many_as_in_transformers(name):
    import torch
    import transformers

    model_class, hf_config = THEIRS[name]
    model_class = getattr(transformers, model_class)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**hf_config))
    theirs = sum(parameter.numel() for parameter in model.parameters())
    ours = parameters_of(name)
    assert ours - theirs == ours_alone(SYSTEMS[name].config, name)


# The command ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_prints_a_row_for_each_system(capsys):
    assert cli.main(["zoo"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in SYSTEMS:
        assert sum(name in line.split() for line in lines) == 1, name
    (row,) = [line for line in lines if "llama3-8b" in line.split()]
    for text in ("decoder", "RoPE", "PreNorm, RMSNorm", "8B", "8,030,261,248"):
        assert text in row
