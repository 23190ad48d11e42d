"""Architectures of all families: each parameter is in one box, and shapes are the model's."""

import math
from dataclasses import replace
from functools import lru_cache

import jax
import pytest
from jax.tree_util import tree_leaves

from jaxformer.functional import ALiBi, LayerNorm, Learned, RMSNorm, RoPE, Sinusoidal, T5Bias
from jaxformer.lab.diagram.architecture import describe
from jaxformer.lab.diagram.graph import walk
from jaxformer.lab.diagram.parts import sublayer_box
from jaxformer.models import (
    CompositeConfig,
    DecoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    VisionConfig,
)
from jaxformer.models.heads import (
    Classification,
    LanguageModel,
    MaskedLanguageModel,
    TokenClassification,
)
from jaxformer.nn import (
    DotProductAttention,
    DotProductCrossAttention,
    Linear,
    Parallel,
    PostNorm,
    PreNorm,
    SandwichNorm,
    TokenEmbeddings,
    VocabularyLogits,
)
from jaxformer.nn.feedforward import FeedForward
from jaxformer.nn.layers import normal
from jaxformer.nn.sublayer import Sublayer
from jaxformer.zoo import SYSTEMS

pytestmark = pytest.mark.more

SIZES = {"num_layers": 6, "model_dim": 12, "num_heads": 6, "num_kv_heads": 2, "mlp_dim": 20}
TEXT = SIZES | {"vocab_size": 30}
NORM = LayerNorm(eps=1e-12)
CONFIGS = {
    "decoder": DecoderConfig(**TEXT),
    "windows": DecoderConfig(**TEXT, windows=(4, 4, None), residual=SandwichNorm()),
    "first norm": DecoderConfig(
        **TEXT, windows=(None,) + (4,) * 5, residual=PreNorm(first_norm=False)
    ),
    "parallel": DecoderConfig(
        **TEXT,
        residual=Parallel(shared_norm=False),
        tie_embeddings=False,
        logits=VocabularyLogits(bias=True),
    ),
    "scaled": DecoderConfig(
        **TEXT,
        residual=PreNorm(layer_scale=0.1),
        self_attention=DotProductAttention(query_key_norm=RMSNorm(eps=1e-6)),
    ),
    "narrow": DecoderConfig(
        **TEXT, embeddings=TokenEmbeddings(dim=8, projection="both"), position=Learned(max_length=9)
    ),
    "repeated": EncoderConfig(
        **TEXT, layer_repeats=3, embeddings=TokenEmbeddings(norm=NORM, dim=8)
    ),
    "encoder": EncoderConfig(
        **TEXT,
        embeddings=TokenEmbeddings(norm=NORM, token_types=2),
        pooler="tanh",
        heads=(MaskedLanguageModel(), Classification(num_labels=3)),
    ),
    "tagger": EncoderConfig(**TEXT, heads=(TokenClassification(num_labels=5),)),
    "encoder-decoder": EncoderDecoderConfig(
        **TEXT,
        num_decoder_layers=3,
        position=Sinusoidal(),
        decoder_position=Sinusoidal(),
        residual=PostNorm(),
        embeddings=TokenEmbeddings(scale=3.0),
    ),
    "own embeddings": EncoderDecoderConfig(
        **TEXT, position=ALiBi(), decoder_position=ALiBi(), share_embeddings=False
    ),
    "vision": VisionConfig(
        **SIZES,
        image_size=(12, 8),
        patch_size=(4, 4),
        position=Learned(max_length=7),
        heads=(Classification(num_labels=4),),
    ),
}


@lru_cache
def described(name):
    return describe(CONFIGS[name])


def boxes(column, inside):
    nodes = walk(*column.ends)
    return [node.box for node in nodes if (node in column.block) == inside]


def parameters(architecture, repeats=1):
    total = 0
    for column in architecture.columns:
        layers = int(column.repeats.split()[0]) // repeats
        total += sum(box.parameters for box in boxes(column, False))
        total += layers * sum(box.parameters for box in boxes(column, True))
    return total


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.quick("decoder", "vision", "windows", "encoder-decoder")
def test_every_parameter_is_in_one_box(name):
    config, architecture = CONFIGS[name], described(name)
    total = parameters(architecture, config.layer_repeats)
    # In the one config whose layers differ in this, the first one has no first norm.
    total -= config.model_dim * (not config.residual.first_norm)
    model = jax.eval_shape(config.build, jax.random.key(0))
    expected = sum(math.prod(leaf.shape) for leaf in tree_leaves(model))
    assert architecture.parameters == expected
    assert total == expected


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.quick("decoder", "vision", "windows", "encoder-decoder")
def test_the_heads_have_the_shapes_of_their_scores(name):
    config = CONFIGS[name]
    (*_, column) = describe(config).columns
    given = [column.shapes[end] for end in column.ends]
    vocabulary, labels = "[B, T, 30]", {"encoder": "[B, 3]", "vision": "[B, 4]"}
    expected = [vocabulary] if config.heads[0].over_vocabulary else []
    expected += [labels[name]] if name in labels else []
    assert given == (expected or ["[B, T, 5]"])


def titles(column, inside=True):
    return [box.title for box in boxes(column, inside) if box.kind != "sum"]


def test_blocks_are_in_the_order_of_the_arrangement():
    (column,) = described("decoder").columns
    assert titles(column) == ["RMSNorm", "Masked self-attention", "RMSNorm", "Feed-forward"]
    encoder, decoder = described("encoder-decoder").columns
    assert titles(encoder) == ["Self-attention", "RMSNorm", "Feed-forward", "RMSNorm"]
    assert titles(decoder)[2:4] == ["Cross-attention", "RMSNorm"]
    assert (encoder.name, encoder.repeats) == ("encoder", "6 x")
    assert (decoder.name, decoder.repeats) == ("decoder", "3 x")
    assert [node.box.title for node in decoder.cross] == ["Cross-attention"]
    assert not encoder.cross


def test_boxes_say_what_the_parts_are():
    (column,) = described("decoder").columns
    attention, mlp = (box for box in boxes(column, True) if box.kind in ("attention", "mlp"))
    assert attention.lines == (
        "6 heads of 2, 2 of K and V",
        "rotates Q and K: RoPE, base 10,000",
        "key, value 12 x 2 x 2",
        "query 12 x 6 x 2",
        "output 6 x 2 x 12",
    )
    assert mlp.lines == ("silu, gated", "gate, up 12 x 20", "down 20 x 12")
    head = column.ends[0].box
    assert head.lines == ("kernel tied to the embedding",)
    assert head.parameters == 0


def test_sublayers_of_ones_own_have_their_names():
    class SquaredGate(FeedForward):
        """A feed-forward layer of one's own."""

    class GRULayer(Sublayer):
        """Something in attention's place."""

        def __init__(self, key):
            self.inputs = Linear(key, {"embed": 4}, {"mlp": 6}, normal(0.02))

    key = jax.random.key(0)
    box = sublayer_box(SquaredGate(key, CONFIGS["decoder"]), 1, masked=True)
    assert (box.kind, box.title) == ("mlp", "Squared gate")
    box = sublayer_box(GRULayer(key), 1, masked=True)
    assert (box.kind, box.title, box.lines) == ("other", "GRU layer", ("inputs 4 x 6",))


def test_inputs_are_in_the_order_in_which_they_are_applied():
    below = titles(described("encoder").columns[0], inside=False)
    assert below[:4] == ["Inputs", "Token embedding", "+ learned positions", "+ token types"]
    assert below[4:] == ["LayerNorm", "Masked language model", "Pooler", "Label"]
    below = titles(described("vision").columns[0], inside=False)
    assert below[:4] == ["Images", "Patch projection", "+ class token", "+ learned positions"]
    _, decoder = described("encoder-decoder").columns
    shared = ["Decoder inputs", "Token embedding, shared", "x 3", "+ sinusoidal positions"]
    assert titles(decoder, inside=False)[:4] == shared
    _, decoder = described("own embeddings").columns
    assert titles(decoder, inside=False)[1] == "Token decoder embedding"


def test_heads_stand_on_what_they_read():
    (column,) = described("encoder").columns
    masked, label = column.ends
    assert masked.inputs == [column.output]
    assert [node.box.title for node in label.inputs] == ["Pooler"]


def test_layers_that_differ_and_shared_tables_are_noted():
    def notes(name):
        return described(name).columns[0].notes

    assert notes("windows") == ("Layers from the first, repeating: 2 x window of 4; 1 x as drawn.",)
    assert notes("repeated") == ("3 successive layers share their parameters.",)
    assert "1 x without window of 4, one fewer norm; 5 x as drawn" in notes("first norm")[0]
    bias = T5Bias(num_buckets=8, max_distance=10, bidirectional=False)
    (column,) = describe(replace(CONFIGS["decoder"], position=bias)).columns
    assert column.notes == ("One table of T5Bias for the scores of all layers: 8 x 6.",)


def test_the_norm_is_that_of_the_config():
    config = replace(CONFIGS["decoder"], norm=LayerNorm(eps=1e-5), position=RoPE(theta=500.0))
    (column,) = describe(replace(config, residual=PreNorm(final_norm=False))).columns
    assert titles(column)[0] == "LayerNorm"
    assert titles(column, inside=False)[-1] == "Language model"
    assert "Final norm: LayerNorm" not in titles(column, inside=False)
    assert isinstance(config.heads[0], LanguageModel)


COMPOSED = ("clip-vit-base-patch32", "t5gemma-2b-2b", "whisper-tiny", "wav2vec2-base")


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.quick("whisper-tiny")
def test_models_of_several_parts_and_of_sounds_are_described_whole(name):
    architecture = describe(SYSTEMS[name].config)
    assert parameters(architecture) == SYSTEMS[name].count_parameters()


def test_two_encoders_are_compared_on_top():
    text, image = describe(SYSTEMS["clip-vit-base-patch32"].config).columns
    (end,) = image.ends
    assert end.box.title == "Similarities"
    assert image.cross == [end]
    assert text.output in text.ends


def test_a_decoder_reads_what_the_encoder_projects():
    sizes = TEXT | {"model_dim": 24}
    decoder = DecoderConfig(**sizes, cross_attention=DotProductCrossAttention())
    encoder, decoder = describe(CompositeConfig(EncoderConfig(**TEXT, heads=()), decoder)).columns
    assert encoder.output.box.title == "Projection"
    assert encoder.ends == [encoder.output]
    assert [node.box.title for node in decoder.cross] == ["Cross-attention"]
    assert [node.box.title for node in decoder.ends] == ["Language model"]


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_every_published_system_is_described(name):
    system = SYSTEMS[name]
    assert describe(system.config).parameters == system.count_parameters()
