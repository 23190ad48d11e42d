"""Generation with the arguments of transformers' FlaxGenerationMixin."""


class GenerationMixin:
    """`generate`."""
