"""StableHLO: programs that JAX runs without jaxformer, with a runner script."""
