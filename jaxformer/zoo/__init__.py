"""Published systems: their sizes, their numbers of parameters, and their files."""

from jaxformer.hub.model_format import ModelFormat
from jaxformer.zoo import (
    albert,
    audio_spectrogram_transformer,
    bart,
    beit,
    bert,
    big_bird,
    blenderbot,
    blenderbot_small,
    bloom,
    clip,
    cohere,
    composite,
    deberta,
    deepseek,
    dinov2,
    dinov3,
    distilbert,
    electra,
    ernie,
    ernie4_5,
    esm,
    eurobert,
    falcon,
    gemma,
    glm,
    gpt,
    gpt_neo,
    gpt_oss,
    gptj,
    granite,
    hubert,
    llama,
    longt5,
    mixtral,
    modernbert,
    mpnet,
    mpt,
    nomic_bert,
    olmo,
    olmoe,
    opt,
    phi,
    phi3,
    pythia,
    qwen,
    qwen_moe,
    roberta,
    roberta_prelayernorm,
    roformer,
    siglip,
    siglip2,
    smollm,
    stablelm,
    starcoder,
    t5,
    t5gemma,
    transformer,
    vision_text_dual_encoder,
    vit,
    vit_mae,
    wav2vec2,
    whisper,
    xglm,
    xlm_roberta_xl,
)
from jaxformer.zoo.system import System

_MODULES = (
    transformer, bert, roberta, distilbert, albert, ernie, gpt, gptj, pythia, llama, phi, gemma,
    qwen, phi3, olmo, mixtral, olmoe, qwen_moe, gpt_oss, deepseek, t5, longt5, bart, vit,
    electra, mpnet, deberta, modernbert, big_bird, dinov2, beit, roberta_prelayernorm, roformer,
    bloom, gpt_neo, opt, mpt, falcon, stablelm, clip, siglip, siglip2,
    granite, smollm, cohere, starcoder, glm, ernie4_5, t5gemma,
    blenderbot, blenderbot_small, xglm,
    composite, vision_text_dual_encoder,
    xlm_roberta_xl, eurobert, nomic_bert, esm,
    dinov3, vit_mae,
    wav2vec2, hubert, audio_spectrogram_transformer, whisper,
)  # fmt: skip

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
