"""Reads a folder's config.json as one of the published systems, or names similar ones."""

from pathlib import Path

from jaxformer.hub.checkpoint import HFCheckpoint, read_checkpoint
from jaxformer.hub.hf_config import HFConfig
from jaxformer.models import CompositeConfig, DualEncoderConfig
from jaxformer.models.model import ModelConfig
from jaxformer.zoo import FORMATS
from jaxformer.zoo.text_parts import text_model_only

_DENSE = "its relatives are: {}; its own kind of experts is not supported yet"
_SIMILAR = "the nearest relatives by architecture are: {}"

# Unsupported systems, by the supported ones that they resemble most. They are not read as these.
_RELATIVES = {
    _DENSE: {
        "llama": (
            "dots1", "hunyuan_v1_moe", "jetmoe",
            "llama4", "llama4_text", "longcat_flash", "minimax", "minimax_m2", "solar_open",
        ),
        "mistral": ("mistral4",),
        "granite": ("granitemoe", "granitemoehybrid", "granitemoeshared"),
        "ernie4_5": ("ernie4_5_moe",),
        "cohere2": ("cohere2_moe",),
        "glm4": ("glm4_moe_lite",),
        "qwen3": ("qwen3_next", "qwen3_5_moe", "qwen3_vl_moe", "glm4_moe"),
        "olmoe": ("flex_olmo",),
        "deepseek_v3": ("deepseek_v32",),
        "phi3": ("phimoe",),
        "m2m_100": ("nllb-moe",),
        "t5": ("switch_transformers",),
        "gemma2, gemma3_text": ("gemma4", "gemma3n", "gemma3n_text"),
        "gpt_neox, llama": ("dbrx",),
    },
    _SIMILAR: {
        "llama": (
            "apertus", "arcee", "baichuan", "exaone", "exaone4", "helium", "internlm", "internlm2",
            "hunyuan_v1_dense", "internlm3", "minicpm", "minicpm3", "nemotron", "olmo", "persimmon",
            "seed_oss", "youtu",
        ),
        "qwen2": ("qwen",),
        "glm": ("chatglm",),
        "falcon": ("RefinedWeb", "RefinedWebModel"),
        "gpt_neox": ("gpt_neox_japanese",),
        "nomic_bert": ("gte", "new", "jina_embeddings_v3", "xlm-roberta-flash"),
        "modernbert": ("modernbert-decoder",),
        "gemma": ("paligemma", "recurrent_gemma", "vaultgemma"),
        "qwen3": ("qwen3_5", "qwen3_5_text"),
        "mistral": ("ministral", "ministral3", "mistral3", "pixtral", "voxtral"),
        "phi3": ("phi4_multimodal",),
        "gpt2": ("biogpt", "ctrl", "gpt_bigcode", "gpt-sw3", "imagegpt"),
        "gptj": ("codegen",),
        "bert": (
            "bert-generation", "bros", "canine", "convbert", "layoutlm", "lilt", "markuplm",
            "megatron-bert", "mobilebert", "mra", "nezha", "nystromformer", "rembert", "splinter",
            "squeezebert", "visual_bert", "xlm", "xlnet", "yoso",
        ),
        "roberta": ("data2vec-text", "ibert", "longformer", "luke", "layoutlmv3", "xmod"),
        "big_bird": ("bigbird_pegasus",),
        "bart": ("fsmt", "led", "mvp", "plbart", "prophetnet", "speech_to_text"),
        "pegasus": ("pegasus_x",),
        "t5": ("pix2struct", "pop2piano", "udop"),
        "vit": ("ijepa", "swin", "vit_msn", "videomae", "yolos"),
        "dinov2": ("dinov2_with_registers",),
        "clip": ("align", "altclip", "blip", "chinese_clip", "clipseg", "groupvit", "owlvit"),
    },
}  # fmt: skip
RELATIVES = {
    kind: sentence.format(known)
    for sentence, table in _RELATIVES.items()
    for known, kinds in table.items()
    for kind in kinds
}
"""The `model_type` of an unsupported system -> similar systems that are supported."""


def read_folder(
    folder: str | Path, strict: bool = False, architecture: str | None = None
) -> HFCheckpoint:
    """Returns the description of the model in a folder."""
    hf_config, formats = text_model_only(HFConfig.of_folder(folder), FORMATS)
    return read_checkpoint(hf_config, formats, RELATIVES, strict, architecture)


def image_class(folder: Path) -> str | None:
    """Returns the image classifier of a dual encoder's checkpoint."""
    return _class_ending(folder, DualEncoderConfig, "ForImageClassification")


def sound_class(folder: Path) -> str | None:
    """Returns the classifier of sounds of an encoder-decoder's checkpoint (Whisper)."""
    return _class_ending(folder, CompositeConfig, "ForAudioClassification")


def _class_ending(folder: Path, kind: type[ModelConfig], ending: str) -> str | None:
    checkpoint = read_folder(folder)
    if not isinstance(checkpoint.config, kind):
        return None
    named = (each.name for each in checkpoint.model_format.architectures)
    return next((name for name in named if name.endswith(ending)), None)
