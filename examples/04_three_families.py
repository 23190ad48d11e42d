# %% [markdown]
# # The three families
#
# Masks, sizes and FLOPs of a decoder, an encoder and an encoder-decoder; Llama's table; BLEU by
# hand; and one translation with its cross-attention, from a model that is trained on this page.

# %%
import contextlib
import io
import math
import random
import tempfile
from collections import Counter
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import jaxformer
from jaxformer.config import Config, TrainConfig
from jaxformer.data import TrainTokenizer
from jaxformer.data.tasks import ParallelText
from jaxformer.functional import LayerNorm, Mask, Prefix, RoPE, Sinusoidal, causal
from jaxformer.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, MaskedLanguageModel
from jaxformer.models.heads.metrics import translation_scores
from jaxformer.nn import MLP, TokenEmbeddings
from jaxformer.optim import AdamW, Cosine
from jaxformer.zoo import SYSTEMS
from jaxformer.zoo.details import model_details

# %% [markdown]
# ## Three masks
#
# An encoder sees all tokens, a decoder those before, a prefix decoder all of the prefix and then
# those before. An encoder-decoder has the first in its encoder, the second in its decoder, and all
# of its decoder reads all of the encoder.

# %%
masks = {
    "encoder: Mask()": Mask().values(8, 8),
    "decoder: causal()": causal().values(8, 8),
    "prefix decoder: Prefix": Prefix(jnp.array([3])).values(8, 8),
    "cross-attention: Mask()": Mask().values(5, 8),
}
figure, grid = plt.subplots(1, 4, figsize=(11, 3.6), layout="constrained")
for axes, (title, allowed) in zip(grid, masks.items(), strict=True):
    axes.imshow(np.asarray(allowed)[0], cmap="Blues", vmin=0, vmax=1.4)
    axes.set(
        title=title, xlabel="key", ylabel="query", xticks=range(8), yticks=range(allowed.shape[1])
    )
figure.suptitle("blue: the query attends to the key")

# %% [markdown]
# ## Parameters and FLOPs
#
# With the same sizes, the families differ in their sublayers. A block has $4 d^2$ parameters in
# attention and $2 d F$ in a feed-forward layer without a gate; a decoder's block of an
# encoder-decoder has the attention twice.

# %%
sizes = {
    "vocab_size": 1000,
    "num_layers": 2,
    "model_dim": 64,
    "num_heads": 4,
    "mlp_dim": 256,
    "position": RoPE(),
}
lengths = {"inputs": 128, "decoder_inputs": 128}
families = {
    "decoder": DecoderConfig(feed_forward=MLP(gated=False), **sizes),
    "encoder": EncoderConfig(heads=(MaskedLanguageModel(),), **sizes),
    "encoder-decoder": EncoderDecoderConfig(feed_forward=MLP(gated=False), **sizes),
}
details = {name: model_details(config, lengths) for name, config in families.items()}
for name, found in details.items():
    parts = ", ".join(f"{part} {count:,}" for part, count in found.parameters.items())
    print(f"{name}: {found.num_parameters:,} parameters: {parts}")
    print(f"{'':{len(name)}}  {found.forward_flops / 1e6:.2f} MFLOPs per token")
d, F, L = 64, 256, 2
assert details["decoder"].parameters["W^Q"] == L * d * d
assert details["decoder"].parameters["mlp"] == L * 2 * d * F
assert details["encoder-decoder"].parameters["W^Q"] == (L + 2 * L) * d * d  # self, self and cross

# %% [markdown]
# ### Llama's table
#
# Table 2 of [Touvron et al. (2023)](https://arxiv.org/abs/2302.13971), from the configs; `jaxformer
# zoo --details` prints it for all systems.

# %%
print("model      parameters  dimension  heads  layers  GFLOPs per token at 2048")
for name in ("llama-7b", "llama-13b", "llama-33b", "llama-65b"):
    found = model_details(SYSTEMS[name].config, {"inputs": 2048})
    print(
        f"{name:9} {found.num_parameters / 1e9:10.1f}B {found.model_dim:10} {found.num_heads:6} "
        f"{found.num_layers[0]:7} {found.forward_flops / 1e9:10.1f}"
    )
    # Two FLOPs for every parameter except the embedding's, which is looked up; and attention.
    products = 2 * (found.num_parameters - found.parameters["embedding"])
    assert abs(found.flops.products / products - 1) < 1e-3
llama = model_details(SYSTEMS["llama-7b"].config, {"inputs": 2048})
assert (llama.model_dim, llama.num_heads, llama.num_layers) == (4096, 32, (32,))
assert f"{llama.num_parameters / 1e9:.1f}" == "6.7"

# %% [markdown]
# ## BLEU by hand
#
# BLEU is the geometric mean of the precisions of 1- to 4-grams, times a penalty for translations
# that are too short. Below, 9 of 10 words, 7 of 9 pairs, 5 of 8 triples and 3 of 7 quadruples of
# the translation are in the reference, and its length is that of the reference:
#
# $$100 \left(\frac9{10} \cdot \frac79 \cdot \frac58 \cdot \frac37\right)^{1/4} = 65.8$$

# %%
reference = ["the", "small", "dog", "that", "sees", "the", "cat", "hides", "the", "ball"]
candidate = ["the", "small", "dog", "that", "saw", "the", "cat", "hides", "the", "ball"]


def ngrams(words, n):
    """How often each n-gram occurs."""
    return Counter(zip(*(words[i:] for i in range(n)), strict=False))


precisions = []
for n in range(1, 5):
    found, right = ngrams(candidate, n), ngrams(reference, n)
    precisions.append((sum((found & right).values()), sum(found.values())))
brevity = min(1.0, math.exp(1 - len(reference) / len(candidate)))
bleu = 100 * brevity * math.prod(a / b for a, b in precisions) ** 0.25
print("precisions:", precisions, " brevity penalty:", brevity, f" BLEU: {bleu:.1f}")
assert precisions == [(9, 10), (7, 9), (5, 8), (3, 7)]
scores = translation_scores([" ".join(candidate)], [" ".join(reference)])
np.testing.assert_allclose(scores["bleu"], bleu, rtol=1e-9)

# %% [markdown]
# ## A translation and its cross-attention
#
# A small French: adjectives follow their noun and agree with it, and so does the article. So "la"
# in "la maison blanche" cannot be chosen before the model has looked at "house".

# %%
NOUNS = {
    "dog": "le chien",
    "cat": "le chat",
    "tree": "le sapin",
    "boat": "le bateau",
    "house": "la maison",
    "car": "la voiture",
    "flower": "la fleur",
    "table": "la table",
}
ADJECTIVES = {
    "black": ("noir", "noire"),
    "white": ("blanc", "blanche"),
    "green": ("vert", "verte"),
    "blue": ("bleu", "bleue"),
    "heavy": ("lourd", "lourde"),
    "round": ("rond", "ronde"),
}
VERBS = {"sees": "voit", "loves": "aime", "hides": "cache", "follows": "suit", "finds": "trouve"}


def phrase(draw):
    """A noun phrase and its translation."""
    noun, adjective = draw.choice(list(NOUNS)), draw.choice(list(ADJECTIVES))
    french = NOUNS[noun]
    return f"the {adjective} {noun}", f"{french} {ADJECTIVES[adjective][french.startswith('la')]}"


def sentence(draw):
    """A sentence and its translation."""
    (subject, sujet), (thing, objet), verb = phrase(draw), phrase(draw), draw.choice(list(VERBS))
    return f"{subject} {verb} {thing}", f"{sujet} {VERBS[verb]} {objet}"


draw = random.Random(0)
held_out = "the black dog sees the white house", "le chien noir voit la maison blanche"
pairs = dict.fromkeys(sentence(draw) for _ in range(2000))
pairs.pop(held_out, None)
folder = Path(tempfile.mkdtemp())
(folder / "train.en").write_text("".join(f"{english}\n" for english, _ in pairs))
(folder / "train.fr").write_text("".join(f"{french}\n" for _, french in pairs))

config = Config(
    model=EncoderDecoderConfig(
        vocab_size=512,
        num_layers=2,
        model_dim=64,
        num_heads=2,
        mlp_dim=128,
        position=Sinusoidal(),
        decoder_position=Sinusoidal(),
        norm=LayerNorm(eps=1e-6),
        embeddings=TokenEmbeddings(scale=8.0),
        init_std=64**-0.5,
        tie_embeddings=True,
        compute_dtype="float32",
        scan_layers=False,
    ),
    data=ParallelText(
        source=str(folder / "train.en"),
        target=str(folder / "train.fr"),
        tokenizer=TrainTokenizer(kind="bpe", vocab_size=512),
        source_length=12,
        target_length=12,
        batch_size=32,
        validation_fraction=0.05,
    ),
    optimizer=AdamW(schedule=Cosine(learning_rate=3e-3, warmup_steps=20), weight_decay=0.0),
    train=TrainConfig(steps=200, eval_interval=100, checkpoint_interval=200),
)
with contextlib.redirect_stdout(io.StringIO()):  # its report is long
    result = jaxformer.train(config, folder / "run")
print({name: round(value, 3) for name, value in result.metrics.items()})
assert result.metrics["bleu"] > 90

# %% [markdown]
# This sentence is in none of the pairs. Each row below is a token that the decoder writes, and the
# weights with which it reads the English tokens: the mean over the heads of the last layer.

# %%
tokenizer = result.model.tokenizer
source = tokenizer.encode(held_out[0])
inputs = {"input_ids": np.array([source.ids])}
written = jaxformer.generate(result.model, inputs, max_new_tokens=12)["sequences"]
translation = tokenizer.decode(written[0].tolist())
print(f"{held_out[0]}  ->  {translation}")
assert translation.strip() == held_out[1]

inputs["decoder_input_ids"] = written
cross = jaxformer.forward(result.model, inputs, output_attentions=True)["cross_attentions"]
print("cross-attention [layers, batch, heads, T, S]:", cross.shape)
np.testing.assert_allclose(cross.sum(axis=-1), 1.0, rtol=1e-5)

weights = cross[-1, 0].mean(axis=0)[:-1]  # row t writes token t + 1
rows = [
    tokenizer.decode([token], skip_special_tokens=False).strip()
    for token in written[0, 1:].tolist()
]
columns = [tokenizer.decode([token]).strip() for token in source.ids]
figure, axes = plt.subplots(figsize=(6, 5), layout="constrained")
image = axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
axes.set_xticks(range(len(columns)), columns, rotation=45)
axes.set_yticks(range(len(rows)), rows)
axes.set(
    xlabel="English token that is read",
    ylabel="French token that is written",
    title="Cross-attention of the last layer, mean of its heads",
)
figure.colorbar(image, label="weight")

# %% tags=["script"]
if "__file__" in globals():
    from pictures import save

    save(__file__)
