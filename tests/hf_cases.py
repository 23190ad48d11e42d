"""Every small model in both libraries: encoders, encoder-decoders, a vision model, a classifier."""

import hf_names
from hf_case import EPS, HF_SIZES, NORM, PAD, SIZES, VOCAB, case
from hf_encoder_cases import ENCODERS
from hf_encoder_decoder_cases import ENCODER_DECODERS

from jaxformer.functional import Learned
from jaxformer.models import Classification, DecoderConfig, VisionConfig
from jaxformer.nn import MLP, DotProductAttention

HF_IMAGES = HF_SIZES | {
    "hidden_size": 30,
    "layer_norm_eps": EPS,
    "image_size": [8, 12],
    "patch_size": [4, 3],
    "num_channels": 2,
    "num_labels": 3,
}


def vision(pooling: str) -> VisionConfig:
    return VisionConfig(
        **SIZES,
        model_dim=30,
        norm=NORM,
        image_size=(8, 12),
        patch_size=(4, 3),
        channels=2,
        position=Learned(max_length=9),
        heads=(Classification(num_labels=3, pooling=pooling),),
    )


def mean_over_patches(model, arguments):
    """Their classifier on the mean of the patches, which theirs does not offer."""
    import torch
    from transformers.modeling_outputs import ImageClassifierOutput

    hidden = model.vit(arguments["pixel_values"]).last_hidden_state
    logits = model.classifier(hidden[:, 1:].mean(dim=1))
    loss = torch.nn.functional.cross_entropy(logits, arguments["labels"])
    return ImageClassifierOutput(loss=loss, logits=logits)


VIT = ("ViTForImageClassification", hf_names.VIT, HF_IMAGES)
OTHERS = {
    "ViT": case(*VIT, vision("first"), {"label": "logits"}),
    "ViT, mean": case(*VIT, vision("mean"), {"label": "logits"}, run=mean_over_patches),
    "GPT-2 SequenceClassification": case(
        "GPT2ForSequenceClassification",
        hf_names.GPT2_CLASSIFIER,
        {
            "vocab_size": VOCAB,
            "pad_token_id": PAD,
            "n_embd": 30,
            "n_head": 6,
            "n_layer": 3,
            "n_positions": 17,
            "layer_norm_epsilon": EPS,
            "num_labels": 3,
        },
        DecoderConfig(
            **SIZES | {"mlp_dim": 120},
            vocab_size=VOCAB,
            model_dim=30,
            position=Learned(max_length=17),
            norm=NORM,
            self_attention=DotProductAttention(bias=True, output_bias=True),
            feed_forward=MLP(activation="gelu_tanh", gated=False, bias=True),
            heads=(Classification(num_labels=3, pooling="last", bias=False),),
        ),
        {"label": "logits"},
    ),
}
CASES = ENCODERS | ENCODER_DECODERS | OTHERS
# Some of each family, which are also run on batches without padding or a mask.
WITHOUT_MASK = (
    "BERT PreTraining",
    "RoBERTa QuestionAnswering",
    "T5",
    "BART",
    "GPT-2 SequenceClassification",
)
