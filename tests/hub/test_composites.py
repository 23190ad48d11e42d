"""Composite models: any encoder with any decoder, compared with transformers and written back."""

import pytest

from jaxformer.parity.table import measure
from jaxformer.parity.tiny import TINY
from jaxformer.zoo import FORMATS

pytestmark = pytest.mark.torch

DECODES = {"is_decoder": True, "add_cross_attention": True}
PAIRS = {
    "bert2gpt2": ("encoder-decoder", "bert", "gpt2"),
    "roberta2roberta": ("encoder-decoder", "roberta", "roberta"),
    "roberta2gpt2": ("encoder-decoder", "roberta", "gpt2"),
    "electra2ernie": ("encoder-decoder", "electra", "ernie"),
    "distilbert2electra": ("encoder-decoder", "distilbert", "electra"),
    "vit2bert": ("vision-encoder-decoder", "vit", "bert"),
    "deit2roberta": ("vision-encoder-decoder", "deit", "roberta"),
}


def part(kind, **changes):
    """The fields of a part in config.json."""
    return {"model_type": kind, **TINY[kind], **changes}


def composite(encoder, decoder, **changes):
    """The fields of config.json; the decoder is narrower than most encoders."""
    return {
        "encoder": part(encoder),
        "decoder": part(decoder, **DECODES, vocab_size=113, **changes),
        "pad_token_id": 3,
        "decoder_start_token_id": 7,
    }


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.slow
def test_equal_in_transformers(pair, tmp_path, monkeypatch):
    kind, encoder, decoder = PAIRS[pair]
    monkeypatch.setitem(TINY, kind, composite(encoder, decoder))
    row = measure(FORMATS[kind], FORMATS[kind].architectures[0], tmp_path)
    assert not row.wrong, row
    assert row.agreement == 1.0, row
    assert row.exported, row
    assert not row.missing, row
