"""The format of `export --format hf --custom-code`: transformers with code in the folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxformer.engines.base import Format, LoadedModel
from jaxformer.engines.custom_code.description import described as described_model
from jaxformer.engines.transformers import TransformersEngine, TransformersModel
from jaxformer.errors import DataError
from jaxformer.extras import optional_module
from jaxformer.hub.weights.tensors import write_tensors
from jaxformer.hub.weights.weight_file import described, tensors_of
from jaxformer.hub.weights.weight_map import WeightMap
from jaxformer.io.model_files import CONFIG, read_object
from jaxformer.models.model import ModelConfig
from jaxformer.pretrained.export.formats import EXPORT_FORMATS
from jaxformer.pretrained.export.serving_files import write_json, write_serving_files
from jaxformer.pretrained.model import Pretrained
from jaxformer.pretrained.writing import copy_other_files

MODELING = "modeling_jaxformer.py"
_CODE = Path(__file__).with_name(MODELING)
_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


class CustomCodeEngine(TransformersEngine):
    """transformers with the code in the folder, which must be that of this version."""

    def load(self, folder: Path, description: Mapping[str, str]) -> LoadedModel:
        if (folder / MODELING).read_bytes() != _CODE.read_bytes():
            raise DataError(
                f"{folder / MODELING}: must be the file of this version of jaxformer, since its "
                "code is executed: export the model again"
            )
        library: Any = optional_module("transformers", "the engine transformers")
        torch: Any = optional_module("torch", "the engine transformers")
        (*_, auto) = (read_object(folder, CONFIG) or {})["auto_map"]
        loader = getattr(library, auto)
        trusted = {"trust_remote_code": True}
        model = loader.from_pretrained(folder, dtype=torch.float32, **trusted)
        return TransformersModel(folder, model.eval(), **trusted)


class CustomCodeFormat(Format):
    """A Hugging Face folder with one modeling file in plain PyTorch."""

    name = "custom-code"
    engines = (CustomCodeEngine(),)

    def check(self, pretrained: Pretrained, quantise: str | None) -> None:
        described_model(pretrained.config)

    def write(
        self, pretrained: Pretrained, folder: Path, dtype: str | None, quantise: str | None
    ) -> None:
        """Writes the weights, config.json, the modeling file and the tokenizer."""
        config = pretrained.config
        placements = weight_map(config).placements(pretrained.abstract_model)
        kinds = described(pretrained.parameters, placements, dtype)
        tensors = tensors_of(pretrained.parameters, placements)
        write_tensors(folder, kinds, tensors, EXPORT_FORMATS["hf"].max_bytes)
        auto, name = _classes(config)
        given = pretrained.checkpoint.hf_config.values
        values = {
            "model_type": "jaxformer",
            "architectures": [name],
            "auto_map": {
                "AutoConfig": "modeling_jaxformer.JaxformerConfig",
                "AutoModel": "modeling_jaxformer.JaxformerModel",
                auto: f"modeling_jaxformer.{name}",
            },
            "dtype": dtype,
            "num_hidden_layers": config.num_layers,
            "is_encoder_decoder": config.is_encoder_decoder,
            "tie_word_embeddings": False,  # the head reads the embedding table
            "use_cache": False,
            **{key: given[key] for key in _TOKENS if given.get(key) is not None},
            **described_model(config),
        }
        lengths = [scheme.max_length for scheme in _schemes(config) if scheme.max_length]
        if lengths:
            values["max_position_embeddings"] = min(lengths)
        copy_other_files(folder, pretrained.folder)
        write_json(folder / CONFIG, values)
        (folder / MODELING).write_bytes(_CODE.read_bytes())
        write_serving_files(folder, values, config.predicts_next_token)


def weight_map(config: ModelConfig) -> WeightMap:
    """Returns the weight map of the modeling file."""
    body = "model." if config.heads else ""
    both = {"encoder": "encoder", "decoder": "decoder"}
    stacks = both if config.is_encoder_decoder else {"transformer": _side(config)}
    names = {
        "embedding": f"{body}embedding",
        "decoder_embedding": f"{body}decoder_embedding",
        "pooler": f"{body}pooler",
    }
    for head in config.heads:
        ours = f"heads.{head.name}"
        names |= {ours: "head", f"{ours}.dense": "head.dense", f"{ours}.norm": "head.norm"}
    for ours, theirs in stacks.items():
        names |= _stack_names(ours, body + theirs, config.is_encoder_decoder and ours == "decoder")
    return WeightMap(names)


def _side(config: ModelConfig) -> str:
    return "decoder" if config.causal else "encoder"


def _stack_names(ours: str, theirs: str, has_cross_attention: bool) -> dict[str, str]:
    cross = ["cross_attention"] if has_cross_attention else []
    sublayers = ["attention", *cross, "feed_forward"]
    block, layer = f"{ours}.stack.group.*", f"{theirs}.layers.{{}}"
    names = {
        f"{ours}.final_norm": f"{theirs}.final_norm",
        f"{ours}.inputs.embedding_norm": f"{theirs}.embedding_norm",
        f"{ours}.inputs.position_table": f"{theirs}.position_table",
        f"{ours}.inputs.relative_table": f"{theirs}.relative_table",
        f"{block}.sublayers.0.position_table": f"{layer}.attention.position_table",
    }
    for kind in ("token_types", "task_types"):
        names[f"{ours}.inputs.kinds.{kind}"] = f"{theirs}.types.{kind}"
    for number in range(2 * len(sublayers)):
        names[f"{block}.norms.{number}"] = f"{layer}.norms.{number}"
        names[f"{block}.scales.{number}"] = f"{layer}.scales.{number}"
    for number, name in enumerate(sublayers[:-1]):
        for part in ("query", "key", "value", "output", "query_norm", "key_norm"):
            path = f"{block}.sublayers.{number}.attention.{part}"
            names[path] = f"{layer}.{name}.{part}"
    for part in ("up", "gate", "down"):
        path = f"{block}.sublayers.{len(sublayers) - 1}.{part}"
        names[path] = f"{layer}.feed_forward.{part}"
    return names


def _classes(config: ModelConfig) -> tuple[str, str]:
    """Returns the Auto class of a model and the class of the modeling file."""
    if not config.heads:
        return "AutoModel", "JaxformerModel"
    if config.is_encoder_decoder:
        return "AutoModelForSeq2SeqLM", "JaxformerForConditionalGeneration"
    if config.predicts_next_token:
        return "AutoModelForCausalLM", "JaxformerForCausalLM"
    return "AutoModelForMaskedLM", "JaxformerForMaskedLM"


def _schemes(config: ModelConfig) -> list[Any]:
    return [config.position, *([config.decoder_position] if config.is_encoder_decoder else [])]
