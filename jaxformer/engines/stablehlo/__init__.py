"""StableHLO: programs that JAX runs without jaxformer, and the runner that is put beside them."""
