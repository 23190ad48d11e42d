"""adapter_config.json: the settings of a PEFT adapter."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jaxformer.errors import ConfigError, DataError
from jaxformer.hub.peft.experts import is_parameter
from jaxformer.io.model_files import ADAPTER_CONFIG, read_object

# Unsupported field -> the values without an effect, the default first.
_UNSUPPORTED = {
    "alora_invocation_tokens": (None, []),
    "megatron_config": (None,),
    "use_qalora": (False, None),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "kasa_config": (None,),
    "velora_config": (None,),
    "monteclora_config": (None,),
}
_KINDS = ("LORA", "IA3", "TRAINABLE_TOKENS")
_EXTRAS = ("bias", "use_dora", "lora_bias", "layer_replication", "trainable_token_indices")
"""The fields of a LoRA with more than factors and fully trained modules."""
_ROUTER = ".weight"
"""The suffix of a router's parameter; linear layers have the names of their modules."""
MERGE = "merge the adapter with PEFT (merge_and_unload, save_pretrained) and load the result"
"""The remedy for most adapters that cannot be read."""
# Other initialisations also change the base's weights, on which the adapter then depends.
_SUPPORTED_INITS = (True, False, None, "gaussian", "orthogonal", "eva")
_TASKS = {
    "ForCausalLM": "CAUSAL_LM",
    "LMHeadModel": "CAUSAL_LM",
    "ForConditionalGeneration": "SEQ_2_SEQ_LM",
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
}


@dataclass(frozen=True)
class PeftConfig:
    """The fields of adapter_config.json that determine the meaning of the tensors."""

    rank: int
    """`r`."""
    alpha: float
    """`lora_alpha`."""
    use_rslora: bool = False
    dropout: float = 0.0
    base: str | None = None
    """`base_model_name_or_path`."""
    task: str | None = None
    """`task_type`."""
    targets: tuple[str, ...] = ()
    """`target_modules`: suffixes of module names; () also if only some layers are adapted."""
    parameters: tuple[str, ...] = ()
    """`target_parameters`: name suffixes of parameters of experts and routers."""
    saved: tuple[str, ...] = ()
    """`modules_to_save`."""
    ranks: Mapping[str, int] | None = None
    """`rank_pattern`: suffix of a module's name -> its rank, if it differs from `rank`."""
    alphas: Mapping[str, float] | None = None
    """`alpha_pattern`."""
    fan_in_fan_out: bool = False
    layers: tuple[int, ...] = ()
    """`layer_replication`: the base's layers in the order of the model; (): each layer once."""
    tokens: Mapping[str, tuple[int, ...]] | tuple[int, ...] = ()
    """The ids of tokens whose rows are replaced, or a mapping from module suffixes to such ids."""
    use_dora: bool = False
    has_factors: bool = True
    """Whether the adapter is a LoRA."""
    is_lora: bool = True
    """Whether it has only low-rank factors and fully trained modules."""

    def tokens_of(self, module: str) -> tuple[int, ...]:
        """Returns the ids of the tokens whose rows the adapter replaces in a table."""
        return _match(self.tokens, module, ()) if isinstance(self.tokens, Mapping) else self.tokens

    def check_depth(self, at: str, adapted: Collection[str], modules: Iterable[str]) -> None:
        """Checks that the adapter covers every layer of the base.

        PEFT adapts every module that `targets` match, so a module with factors in one layer must
        have them in all layers. `adapted` are the modules with factors, and `modules` all modules
        of the base.
        """
        places = {_without_layer(module) for module in adapted}
        lacking = [
            module
            for module in modules
            if _without_layer(module) in places
            and module not in adapted
            and any(f".{module}".endswith(f".{target}") for target in self.targets)
        ]
        if lacking:
            raise DataError(
                f"{at}: does not fit the model: it has no factors for {lacking[0]}, though "
                f"target_modules names it: was it trained on a shallower model than this one? Its "
                f"own base is {self.base or 'not named'}; layers_to_transform in {ADAPTER_CONFIG} "
                "lists the adapted layers, if not all"
            )

    def scale_of(self, module: str, rank: int) -> float:
        """Returns the scale of the product of a module's factors of this rank."""
        alpha = _match(self.alphas or {}, module, self.alpha)
        return alpha / (math.sqrt(rank) if self.use_rslora else rank)

    def of_modules(
        self,
        ranks: Mapping[str, int],
        modules: Sequence[str],
        saved: Sequence[str],
        fan_in_fan_out: bool,
    ) -> "PeftConfig":
        """Returns the configuration of an adapter for some modules, with the scale of this one.

        `ranks` are the ranks of modules with factors, and of the parameters of experts and routers;
        `modules` are all modules and such parameters, and `saved` the fully trained ones.
        """
        scale = self.scale_of("", self.rank)

        def alpha_of(rank: int) -> float:
            exact = scale * (math.sqrt(rank) if self.use_rslora else rank)
            return self.alpha if rank == self.rank else exact

        ends = _unique_suffixes(ranks, modules)
        usual = max(ranks.values(), key=list(ranks.values()).count)
        other = {ends[module]: rank for module, rank in ranks.items() if rank != usual}
        if any(ranks[module] == usual and end in other for module, end in ends.items()):
            other = {module: rank for module, rank in ranks.items() if rank != usual}
        parameters = {module: end for module, end in ends.items() if _is_parameter(module)}
        return replace(
            self,
            rank=usual,
            alpha=alpha_of(usual),
            ranks=other,
            alphas={end: alpha_of(rank) for end, rank in other.items()},
            targets=tuple(dict.fromkeys(end for m, end in ends.items() if m not in parameters)),
            parameters=tuple(dict.fromkeys(parameters.values())),
            saved=tuple(saved),
            fan_in_fan_out=fan_in_fan_out,
        )

    def write(self, folder: Path) -> None:
        """Writes adapter_config.json."""
        values = {
            "peft_type": "LORA",
            "task_type": self.task,
            "base_model_name_or_path": self.base,
            "revision": None,
            "inference_mode": True,
            "r": self.rank,
            "lora_alpha": _number(self.alpha),
            "lora_dropout": self.dropout,
            "use_rslora": self.use_rslora,
            "use_dora": False,
            "bias": "none",
            "fan_in_fan_out": self.fan_in_fan_out,
            "target_modules": list(self.targets),
            "target_parameters": list(self.parameters) or None,
            "exclude_modules": None,
            "modules_to_save": list(self.saved) or None,
            "rank_pattern": dict(self.ranks or {}),
            "alpha_pattern": {end: _number(x) for end, x in (self.alphas or {}).items()},
            "layers_to_transform": None,
            "layers_pattern": None,
            "init_lora_weights": True,
            "auto_mapping": None,
        }
        (folder / ADAPTER_CONFIG).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def task_of(architecture: str) -> str | None:
    """Returns PEFT's `task_type` for a class of transformers, or None."""
    return next((task for end, task in _TASKS.items() if architecture.endswith(end)), None)


def read_peft_config(folder: Path) -> PeftConfig:
    """Returns the fields of adapter_config.json."""
    path = folder / ADAPTER_CONFIG
    values = read_object(folder, ADAPTER_CONFIG)
    if values is None:
        raise ConfigError(f"{folder}: must have {ADAPTER_CONFIG} and adapter_model.safetensors")
    kind = values.get("peft_type")
    if kind not in _KINDS:
        raise ConfigError(
            f"{path}: peft_type = {kind!r}: must be one of {', '.join(_KINDS)}{_merge_hint(kind)}"
        )
    for name, without in _UNSUPPORTED.items():
        if values.get(name, without[0]) not in without:
            raise ConfigError(f"{path}: {name} = {values[name]!r}: must be {without[0]!r}; {MERGE}")
    start = values.get("init_lora_weights", True)
    if start not in _SUPPORTED_INITS:
        raise ConfigError(
            f"{path}: init_lora_weights = {start!r} changes the weights of the base: convert the "
            "adapter with PEFT (save_pretrained with path_initial_model_for_weight_conversion)"
        )
    if kind != "LORA":
        return PeftConfig(
            rank=1,
            alpha=1,
            base=values.get("base_model_name_or_path") or None,
            tokens=_tokens(path, values.get("token_indices")),
            has_factors=False,
            is_lora=False,
        )
    rank, alpha = values.get("r"), values.get("lora_alpha")
    patterns = [values.get(f"{name}_pattern") or {} for name in ("rank", "alpha")]
    numbers = [rank, alpha, *(value for found in patterns for value in dict(found).values())]
    if not all(isinstance(x, int | float) and 0 < x < math.inf for x in numbers):
        raise ConfigError(f"{path}: r, lora_alpha and their patterns: must be positive numbers")
    return PeftConfig(
        rank=rank,
        alpha=alpha,
        use_rslora=bool(values.get("use_rslora")),
        base=values.get("base_model_name_or_path") or None,
        targets=_targets(values),
        parameters=_parameters(path, values.get("target_parameters")),
        ranks=patterns[0],
        alphas=patterns[1],
        use_dora=bool(values.get("use_dora")),
        layers=_layers(path, values.get("layer_replication")),
        tokens=_tokens(path, values.get("trainable_token_indices")),
        is_lora=not any(values.get(name) not in (None, False, "none", [], {}) for name in _EXTRAS),
    )


def _targets(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the name suffixes of the modules adapted in every layer; () if not stated."""
    ends = values.get("target_modules")
    some = ("layers_to_transform", "exclude_modules")
    if not isinstance(ends, list) or any(values.get(name) not in (None, []) for name in some):
        return ()
    return tuple(end for end in ends if isinstance(end, str))


def _parameters(path: Path, given: Any) -> tuple[str, ...]:
    if not isinstance(given or [], list) or not all(isinstance(end, str) for end in given or ()):
        raise ConfigError(f"{path}: target_parameters = {given!r}: must be a list of names")
    return tuple(given or ())


def _is_parameter(module: str) -> bool:
    """Whether PEFT adapts it as a parameter, as in experts and routers."""
    return module.endswith(_ROUTER) or is_parameter(module)


def _without_layer(module: str) -> str:
    """Returns the name of a module without its layer number."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "#", module, count=1)


def _merge_hint(kind: object) -> str:
    """Returns the remedy for an adapter of another type."""
    if any(part in str(kind) for part in ("PROMPT", "PREFIX", "P_TUNING")):
        return "; this one adds states to each text, which weights cannot express"
    return f"; {MERGE}"


def _layers(path: Path, ranges: Any) -> tuple[int, ...]:
    """Returns the concatenated layers of ranges [start, end)."""
    try:
        return tuple(layer for start, end in ranges or () for layer in range(start, end))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{path}: layer_replication = {ranges!r}: must be a list of pairs [start, end]"
        ) from error


def _tokens(path: Path, given: Any) -> Mapping[str, tuple[int, ...]] | tuple[int, ...]:
    lists = given.values() if isinstance(given, dict) else [given or []]
    if not all(isinstance(ids, list) and all(isinstance(i, int) for i in ids) for ids in lists):
        raise ConfigError(f"{path}: the indices of tokens = {given!r}: must be lists of ids")
    if isinstance(given, dict):
        return {module: tuple(ids) for module, ids in given.items()}
    return tuple(given or ())


def _match(patterns: Mapping[str, Any], module: str, default: Any) -> Any:
    """Returns the value of the first pattern that matches the end of a name, as in PEFT."""
    return next(
        (value for end, value in patterns.items() if re.match(rf"(.*\.)?({end})$", module)), default
    )


def _unique_suffixes(adapted: Mapping[str, int], modules: Sequence[str]) -> dict[str, str]:
    """Returns the shortest unique suffix of each adapted module's name."""
    others = [module.split(".") for module in modules if module not in adapted]
    ends = {}
    for module in adapted:
        parts = module.split(".")
        count = next(
            n for n in range(1 + _is_parameter(module), len(parts) + 1)
            if n == len(parts) or all(other[-n:] != parts[-n:] for other in others)
        )  # fmt: skip
        ends[module] = ".".join(parts[-count:])
    return ends


def _number(value: float) -> float:
    return int(value) if value == int(value) else value
