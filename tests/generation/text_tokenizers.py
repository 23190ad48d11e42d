"""Small tokenizers of every kind whose text is decoded in its own way."""

from tokenizers import AddedToken, Tokenizer, decoders, models

from jaxformer.data.tokenizers.auto_process import CLEANED
from jaxformer.data.tokenizers.training import byte_alphabet

EMOJI = "👩‍🚀🙂"
SPECIAL, PLAIN = "<|end|>", "naïve 日本"
WORDS = ["▁", "▁▁", "▁the", "the", "▁n't", "s", ".", " ", "日", "本", "🙂", "\ufffd", "a\ufffd"]
BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(decoder=None):
    """Every byte, and tokens of several bytes that cut characters."""
    alphabet = byte_alphabet()
    emoji, pieces = EMOJI.encode(), [b" the", b"\xe6", b"\x97\xa5a", b"\xff\xf0", b"\xed\xa0\x80"]
    pieces += [emoji[:2], emoji[2:7], emoji[7:]]
    names = alphabet + ["".join(alphabet[byte] for byte in piece) for piece in pieces if piece[1:]]
    return _tokenizer(names, decoder or decoders.ByteLevel(), "é", "Ġx", PLAIN)


def llama():
    """Words, and bytes for what they lack; the first space belongs to nobody."""
    return _fallback(decoders.Strip(content=" ", left=1, right=0))


def gemma():
    return _fallback()


def metaspace():
    return _tokenizer([*WORDS, *BYTE_TOKENS[-3:]], decoders.Metaspace())


def metaspace_bytes():
    chain = [decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()]
    return _tokenizer([*WORDS, *BYTE_TOKENS], decoders.Sequence(chain))


def wordpiece():
    names = ["the", "##se", "##s", ".", ",", "n't", "'", "s", "##n't", "do", "日", "##本", "##"]
    return _tokenizer(names, decoders.WordPiece())


def ends_of_words():
    names = ["the</w>", "the", "se</w>", ".</w>", "</w>", "日</w>", "本"]
    return _tokenizer(names, decoders.BPEDecoder(suffix="</w>"))


def without_decoder():
    return _tokenizer(WORDS, None)


def cleaned(first=None):
    """What transformers does with `clean_up_tokenization_spaces`."""
    names = ["▁", "▁n", "n", "'", "t", "▁'", "▁.", ".", "▁x", "s", "▁?", "ve", "▁n't", "日"]
    replaced = [decoders.Replace(*pair) for pair in CLEANED]
    chain = [first or decoders.Metaspace(), decoders.Fuse(), *replaced]
    return _tokenizer(names, decoders.Sequence(chain))


KINDS = {
    "byte-level": byte_level,
    "byte-level in a sequence": lambda: byte_level(decoders.Sequence([decoders.ByteLevel()])),
    "llama": llama,
    "gemma": gemma,
    "metaspace": metaspace,
    "metaspace and bytes": metaspace_bytes,
    "wordpiece": wordpiece,
    "ends of words": ends_of_words,
    "without a decoder": without_decoder,
    "cleaned": cleaned,
    "cleaned words": lambda: cleaned(decoders.WordPiece(prefix="▁", cleanup=False)),
}


def _fallback(*last):
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *last]
    return _tokenizer([*BYTE_TOKENS, *WORDS], decoders.Sequence(chain))


def _tokenizer(names, decoder, *added):
    tokenizer = Tokenizer(models.BPE({name: id_ for id_, name in enumerate(names)}, []))
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in added])
    tokenizer.add_special_tokens([AddedToken(SPECIAL)])
    return tokenizer
