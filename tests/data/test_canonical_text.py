"""What tokenizers of transformers change in a text before they split it."""

import pytest

from jaxformer.data.tokenizers.canonical import canonical_text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"tokenizer_class": "SiglipTokenizer"}, "a photo of 2 cats"),
        ({"tokenizer_class": "SiglipTokenizer", "do_lower_case": False}, "A photo of 2 Cats"),
        ({"tokenizer_class": "CLIPTokenizer"}, " A photo  of 2 Cats."),
    ],
)
def test_only_siglip_leaves_out_punctuation(settings, expected):
    assert canonical_text(settings)(" A photo  of 2 Cats.") == expected
