"""The module of a Flax class: the model without its state."""

from typing import Any


class FlaxModule:
    """A model as a Flax module has it, without state; it cannot be a part of another module."""

    def __init__(self, model: Any):
        """Takes a model, whose parameters it ignores."""
        self._model = model

    def init(self, rngs: Any, *inputs: Any, **options: Any) -> dict[str, Any]:
        """Returns `{"params": tree}`; `rngs` is a key, or {"params": key}; inputs are ignored."""
        del inputs, options
        key = rngs["params"] if isinstance(rngs, dict) else rngs
        return {"params": self._model.init_weights(key)}

    def apply(
        self,
        variables: Any,
        *inputs: Any,
        deterministic: bool = True,
        rngs: Any = None,
        **options: Any,
    ) -> Any:
        """Runs the model with `variables["params"]`; `rngs` has a "dropout" key for training."""
        key = None if deterministic else (rngs or {}).get("dropout")
        training = {} if deterministic else {"train": True, "dropout_rng": key}
        return self._model(*inputs, params=variables["params"], **training, **options)
