"""Frozen encoders inside other programs: prompts of a diffusion model, soft proteins, images.

    python examples/frozen_encoders.py

makes small random models in a temporary folder in place of published ones, and runs the three
functions below, which take folders or names on the hub. PyTorch is not imported.
"""

import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxformer
from jaxformer.functional.hooks import replace_with


def prompt_features(pipeline, ids, second_ids):
    """The two text encoders of a latent diffusion model: states [B, T, D], and a vector [B, E].

    The states are those before the last layer, as the pipelines take them, without a mask.
    """
    first, first_params = jaxformer.encoder(pipeline, subfolder="text_encoder")
    second, second_params = jaxformer.encoder(pipeline, subfolder="text_encoder_2")

    @jax.jit
    def features(first_params, second_params, ids, second_ids):
        one = first(first_params, {"input_ids": ids}, hidden_states=True)
        two = second(second_params, {"input_ids": second_ids}, hidden_states=True)
        states = [x["hidden_states"][-2] for x in (one, two)]
        return jnp.concatenate(states, axis=-1), two["text_embeds"]

    return features(first_params, second_params, ids, second_ids)


def protein_gradient(folder, logits, score):
    """The gradient of a score of ESM-2's states with respect to soft tokens, logits [B, T, V]."""
    fn, params = jaxformer.encoder(folder)
    table = params["embedding.table"]
    # ESM-2 was trained with 12 % of its tokens masked, and scales the embeddings of others by this.
    scale = 1.0 - 0.15 * 0.8

    def loss(logits):
        soft = scale * jax.nn.softmax(logits) @ table
        ids = jnp.argmax(logits, axis=-1)
        hooks = {"hook_embed": replace_with(soft)}
        return score(fn(params, {"input_ids": ids}, hooks=hooks)["last_hidden_state"])

    return jax.grad(loss)(logits)


def image_gradient(folder, images, target):
    """The gradient of the similarity of images [B, C, H, W] to target features [B, D]."""
    fn, params = jaxformer.encoder(folder)

    @jax.jit
    @jax.grad
    def gradient(images):
        features = fn(params, {"pixel_values": images})["pooler_output"]
        return jnp.sum(features * target) / jnp.linalg.norm(features)

    return gradient(images)


def main():
    """Runs the three functions on small random models."""
    from jaxformer.flax import FlaxCLIPTextModel, FlaxCLIPTextModelWithProjection, FlaxDinov2Model

    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text |= {"intermediate_size": 64, "vocab_size": 100, "projection_dim": 24, "eos_token_id": 99}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        FlaxCLIPTextModel(text).save_pretrained(folder / "text_encoder")
        FlaxCLIPTextModelWithProjection(text).save_pretrained(folder / "text_encoder_2")
        ids = np.array([[5, 6, 7, 99, 99]])
        states, pooled = prompt_features(folder, ids, ids)
        print("prompt:", states.shape, pooled.shape)
        image = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        image |= {"image_size": 28, "patch_size": 14}
        FlaxDinov2Model(image).save_pretrained(folder / "dinov2")
        pixels = np.random.default_rng(0).standard_normal((1, 3, 28, 28), np.float32)
        gradient = image_gradient(folder / "dinov2", pixels, np.ones((1, 32), np.float32))
        print("image:", gradient.shape, bool(jnp.isfinite(gradient).all()))


if __name__ == "__main__":
    main()
