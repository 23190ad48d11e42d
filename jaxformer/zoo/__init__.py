"""Published systems: their sizes, their numbers of parameters, and their files."""

from importlib import import_module

from jaxformer.hub.model_format import ModelFormat
from jaxformer.zoo.system import System

# A model is written in the first format that can express it.
_NAMES = (
    "transformer", "bert", "roberta", "distilbert", "albert", "ernie", "gpt", "gptj", "pythia",
    "llama", "phi", "gemma", "qwen", "phi3", "olmo", "mixtral", "olmoe", "qwen_moe", "gpt_oss",
    "deepseek", "t5", "longt5", "bart", "vit", "electra", "mpnet", "deberta", "modernbert",
    "big_bird", "dinov2", "beit", "roberta_prelayernorm", "roformer", "bloom", "gpt_neo", "opt",
    "mpt", "falcon", "stablelm", "clip", "siglip", "siglip2", "granite", "smollm", "cohere",
    "starcoder", "glm", "ernie4_5", "t5gemma", "blenderbot", "blenderbot_small", "xglm",
    "composite", "vision_text_dual_encoder", "xlm_roberta_xl", "eurobert", "nomic_bert", "esm",
    "dinov3", "vit_mae", "wav2vec2", "hubert", "audio_spectrogram_transformer", "whisper",
)  # fmt: skip
_MODULES = [import_module(f"jaxformer.zoo.{name}") for name in _NAMES]

SYSTEMS: dict[str, System] = {
    system.name: system for module in _MODULES for system in getattr(module, "SYSTEMS", ())
}
"""Every system by its name."""

FORMATS: dict[str, ModelFormat] = {
    model_format.model_type: model_format
    for module in _MODULES
    for model_format in getattr(module, "FORMATS", ())
}
"""The files of every system in transformers, by its `model_type`."""

__all__ = ["FORMATS", "SYSTEMS", "System"]
