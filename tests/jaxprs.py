"""What a traced function computes."""

from jax.extend.core import jaxprs_in_params


def equations(jaxpr):
    """All equations of a jaxpr, those of its loops and of the functions that it calls too."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)
