"""jaxformer: transformers in JAX.

Letters used for array axes everywhere in the package::

    B batch            N query heads          D model dim
    T query length     K key/value heads      F feed-forward dim
    S key length       G = N / K              V vocabulary
    L layers           H head dim
"""

__version__ = "0.1.0"
