"""The objective with which a checkpoint's pre-training goes on."""

from jaxformer.data import CausalLM, Denoising, MaskedLM, Objective, SpanCorruption, Tokenizer
from jaxformer.data.tokenizers.special_tokens import Role
from jaxformer.errors import ConfigError
from jaxformer.models.model import ModelConfig


def pretraining_objective(model: ModelConfig, tokenizer: Tokenizer) -> Objective:
    """Returns the objective that a model and its tokenizer were made for.

    A decoder predicts the next token, an encoder hidden tokens. An encoder-decoder whose tokenizer
    has sentinels predicts hidden spans, as T5; one whose texts begin with a token and that has a
    mask restores texts, as BART.
    """
    if model.causal:
        return CausalLM(begin_of_text=True)
    if not model.is_encoder_decoder:
        return MaskedLM()
    if _has(tokenizer, "sentinels"):
        return SpanCorruption()
    if _has(tokenizer, "mask") and _begins_with_cls(tokenizer):
        return Denoising()
    raise ConfigError(
        "data.objective = None: nothing says on what this encoder-decoder was trained, as its "
        "tokenizer has neither T5's sentinels (<extra_id_0>) nor BART's <s> and <mask>; name an "
        "objective: --data.objective SpanCorruption or Denoising"
    )


def _begins_with_cls(tokenizer: Tokenizer) -> bool:
    frame = tokenizer.frame(1)
    if frame is None or not _has(tokenizer, "cls"):
        return False
    return frame.gaps[0] == tuple(tokenizer.special_ids("cls"))


def _has(tokenizer: Tokenizer, role: Role) -> bool:
    try:
        return len(tokenizer.special_ids(role)) > 0
    except ConfigError:
        return False
