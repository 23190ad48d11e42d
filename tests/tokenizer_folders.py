"""Folders with a tokenizer of every kind that is in use, each with what the hub has beside it."""

import base64
import json

from hf_checkpoints import SENTENCES, bert_tokenizer, byte_bpe, unigram
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from jaxformer.data.tokenizers.training import byte_alphabet

_ROBERTA = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_END = "<|endoftext|>"
LLAMA = {
    "model_type": "bpe",
    "byte_fallback": True,
    "character_coverage": 0.99,
    "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False,
    "split_digits": True,
}
GEMMA = LLAMA | {
    "pad_id": 0,
    "eos_id": 1,
    "bos_id": 2,
    "unk_id": 3,
    "add_dummy_prefix": False,
    "eos_piece": "<eos>",
    "bos_piece": "<bos>",
    "user_defined_symbols": ["<mask>", "<turn>"],
}
T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
ALBERT = {
    "pad_id": 0,
    "unk_id": 1,
    "bos_id": -1,
    "eos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}
DEBERTA = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3, "unk_piece": "[UNK]"}
DEBERTA |= {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]"}
_SENTINELS = [f"<extra_id_{number}>" for number in range(8)]


def added(content, **fields):
    """An entry of added_tokens_decoder."""
    usual = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    return {"content": content, "special": False} | usual | fields


# Vocabularies of older models ---------------------------------------------------------------------


def words(folder, first=()):
    """BERT's vocab.txt."""
    tokenizer = bert_tokenizer().backend_tokenizer
    tokenizer.model.save(str(folder))
    if first:
        rest = (folder / "vocab.txt").read_text(encoding="utf-8").split("\n")[len(first) :]
        (folder / "vocab.txt").write_text("\n".join([*first, *rest]), encoding="utf-8")


def merges(*special):
    """vocab.json and merges.txt of bytes."""
    return lambda folder: byte_bpe(special)[0].model.save(str(folder))


def clip(folder):
    """CLIP's vocab.json and merges.txt, in which the end of a word is a mark."""
    rust = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=300, end_of_word_suffix="</w>", show_progress=False)
    rust.train_from_iterator([text.lower() for text in SENTENCES], trainer)
    stored = json.loads(rust.to_str())["model"]
    whole = [char + end for end in ("", "</w>") for char in byte_alphabet()]
    names = dict.fromkeys([*whole, *stored["vocab"], "<|startoftext|>", _END])
    write_words(folder, names, stored["merges"])


def write_words(folder, names, pairs):
    """vocab.json and merges.txt."""
    vocabulary = {name: id_ for id_, name in enumerate(names)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = ["#version: 0.2", *(" ".join(pair) for pair in pairs), ""]
    (folder / "merges.txt").write_text("\n".join(lines), encoding="utf-8")


def amino_acids(folder):
    """ESM's vocab.txt."""
    names = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<mask>"]
    (folder / "vocab.txt").write_text("\n".join(names), encoding="utf-8")


def shuffled(folder, leave_out=()):
    """M2M-100's model with a vocabulary of its own order."""
    sentencepiece("sentencepiece.bpe.model")(folder)
    from jaxformer.data.tokenizers.sentencepiece import read_sentencepiece

    pieces = read_sentencepiece(folder / "sentencepiece.bpe.model").pieces
    names = dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *(p.text for p in reversed(pieces))])
    write_words(folder, [name for name in names if name not in leave_out], [])
    (folder / "merges.txt").unlink()


def marian(folder):
    """Two models and what they share."""
    shuffled(folder)
    (folder / "sentencepiece.bpe.model").rename(folder / "source.spm")
    (folder / "target.spm").write_bytes((folder / "source.spm").read_bytes())


def nothing(folder):
    """No file."""


def sentencepiece(name, **options):
    """A SentencePiece model."""

    def write(folder):
        from test_sentencepiece import train

        train(folder / name, **options)

    return write


def tiktoken(name):
    """A file of ranks."""

    def write(folder):
        byte_of = {char: byte for byte, char in enumerate(byte_alphabet())}
        stored = json.loads(byte_bpe(())[0].to_str())["model"]["vocab"]
        order = sorted(stored, key=lambda text: (len(text) > 1, stored[text]))
        tokens = (bytes(byte_of[char] for char in text) for text in order)
        lines = (base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
        (folder / name).write_bytes(b"".join(lines))

    return write


# tokenizer.json -----------------------------------------------------------------------------------


def byte_level(*special, post=None, normalizer=None):
    """Byte-level BPE, as of GPT-2."""

    def make():
        rust, _ = byte_bpe(special)
        if normalizer is not None:
            rust.normalizer = normalizer
        if post is not None:
            rust.post_processor = post(rust)
        return rust

    return make


def _begins(name):
    """Puts a token in front of each text."""
    return lambda rust: processors.TemplateProcessing(
        single=f"{name} $A",
        pair=f"{name} $A {name}:1 $B:1",
        special_tokens=[(name, rust.token_to_id(name))],
    )


def _roberta(rust):
    return processors.RobertaProcessing(
        ("</s>", rust.token_to_id("</s>")), ("<s>", rust.token_to_id("<s>"))
    )


def byte_fallback(*special, vocab_size, **parts):
    """BPE with a token for each byte of unknown characters."""
    rust = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    for name, part in parts.items():
        setattr(rust, name, part)
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[*special, *fallback], show_progress=False
    )
    rust.train_from_iterator(SENTENCES, trainer)
    stored = json.loads(rust.to_str())
    stored["added_tokens"] = stored["added_tokens"][: len(special)]  # bytes are ordinary tokens
    return Tokenizer.from_str(json.dumps(stored))


BLANK_IN_FRONT = {
    "normalizer": normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
    "decoder": decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1),
        ]
    ),
}
"""Llama 2's parts: the normalizer makes blanks and the one in front."""


def llama_json():
    """Llama 2's."""
    rust = byte_fallback("<unk>", "<s>", "</s>", vocab_size=700, **BLANK_IN_FRONT)
    rust.post_processor = _begins("<s>")(rust)
    return rust


def word_level():
    """A vocabulary of whole words."""
    rust = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    rust.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(
        vocab_size=90, special_tokens=["[UNK]", "[PAD]", "[SEP]"], show_progress=False
    )
    rust.train_from_iterator(SENTENCES, trainer)
    return rust


def _wordpiece():
    return bert_tokenizer().backend_tokenizer


def _padded():
    """One that was saved as it was last used."""
    rust = _wordpiece()
    rust.enable_truncation(8)
    rust.enable_padding(length=8)
    return rust


def _kind(vocabulary, model_type, tokenizer_class=None, **settings):
    """What makes the vocabulary, config.json (a model_type), and tokenizer_config.json, if any."""
    if tokenizer_class is not None:
        settings["tokenizer_class"] = tokenizer_class
    return vocabulary, model_type, settings


def _json(make, *names, **settings):
    """A kind whose vocabulary is a tokenizer.json alone."""
    return _kind(lambda folder: make().save(str(folder / "tokenizer.json")), *names, **settings)


_TEXT = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>"}
_GERMAN = {"src_lang": "de_DE", "tgt_lang": "en_XX"}
_PHI3 = {
    "0": added("<unk>", special=True),
    "1": added("<s>", special=True),
    "2": added("</s>", rstrip=True),
    "701": added("<|end|>", special=True, rstrip=True),
    "700": added("<|user|>", special=True, rstrip=True),
}
_BEGIN, _END_OF_TURN = "<|begin_of_text|>", "<|im_end|>"
_GENERIC = "PreTrainedTokenizerFast"

_llama = sentencepiece("tokenizer.model", **LLAMA)
_t5 = sentencepiece("spiece.model", **T5)
_xlm = sentencepiece("sentencepiece.bpe.model")
OLD = {
    "bert": _kind(words, "bert"),
    "bert_cased": _kind(words, "bert", "BertTokenizer", do_lower_case=False),
    "distilbert": _kind(words, "distilbert", "DistilBertTokenizer"),
    "mpnet": _kind(lambda f: words(f, (*_ROBERTA[:3], "[UNK]", "<mask>")), "mpnet"),
    "gpt2": _kind(merges(_END), "gpt2"),
    "gptj": _kind(merges(_END), "gptj", "GPT2Tokenizer"),
    "phi": _kind(merges(_END), "phi", "CodeGenTokenizer"),
    "opt": _kind(
        merges(*_ROBERTA[:4]),
        "opt",
        "GPT2Tokenizer",
        add_bos_token=True,
        pad_token="<pad>",
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "</s>"),
    ),
    "roberta": _kind(merges(*_ROBERTA), "roberta"),
    "bart": _kind(merges(*_ROBERTA), "bart"),
    "clip": _kind(merges("<|startoftext|>", _END), "clip"),
    "clip_words": _kind(clip, "clip", do_lower_case=True, pad_token=_END),
    "qwen2": _kind(
        merges(_END),
        "qwen2",
        "Qwen2Tokenizer",
        eos_token=_END_OF_TURN,
        additional_special_tokens=["<|im_start|>", _END_OF_TURN],
    ),
    "llama": _kind(_llama, "llama", "LlamaTokenizer", add_bos_token=True, legacy=True),
    "llama_first": _kind(_llama, "llama", "LlamaTokenizer", add_bos_token=True, pad_token="<pad>"),
    "gemma": _kind(
        sentencepiece("tokenizer.model", **GEMMA), "gemma", "GemmaTokenizer", add_bos_token=True
    ),
    "t5": _kind(_t5, "t5"),
    "t5_few": _kind(_t5, "t5", "T5Tokenizer", extra_ids=8, additional_special_tokens=_SENTINELS),
    "albert": _kind(sentencepiece("spiece.model", **ALBERT), "albert"),
    "xlm_roberta": _kind(_xlm, "xlm-roberta"),
    "mbart": _kind(_xlm, "mbart", "MBartTokenizer", **_GERMAN),
    "mistral_model": _kind(
        _llama, "mistral", "LlamaTokenizer", add_bos_token=True, legacy=True, bos_token="<s>"
    ),
    "pegasus": _kind(_t5, "pegasus"),
    "deberta_v2": _kind(
        sentencepiece("spm.model", **DEBERTA), "deberta-v2", do_lower_case=False, vocab_type="spm"
    ),
    "tiktoken": _kind(
        tiktoken("tiktoken.model"),
        "llama",
        _GENERIC,
        added_tokens_decoder={
            "400": added("<|begin|>", special=True),
            "403": added("<|end|>", special=True),
        },
        bos_token="<|begin|>",
        eos_token="<|end|>",
    ),
}
MODERN = {
    "gpt2_json": _json(byte_level(_END), "gpt2", "GPT2Tokenizer"),
    "gpt2_prefix": _json(byte_level(_END), "gpt2", "GPT2Tokenizer", add_prefix_space=True),
    "gpt2_no_settings": _json(byte_level(_END), "gpt2"),
    "roberta_prefix": _json(
        byte_level(*_ROBERTA, post=_roberta),
        "roberta",
        "RobertaTokenizerFast",
        add_prefix_space=True,
        mask_token=added("<mask>", lstrip=True, __type="AddedToken"),
    ),
    "only_in_added_tokens_decoder": _json(
        byte_level(_END),
        "gpt2",
        _GENERIC,
        added_tokens_decoder={
            "0": added(_END, special=True),
            "400": added("<tool>"),
            "401": added(_END_OF_TURN, special=True),
            "402": added("red boat", normalized=True),
        },
        eos_token=_END_OF_TURN,
    ),
    "only_in_extra_special_tokens": _json(
        byte_level(_END),
        "gpt2",
        "GPT2Tokenizer",
        extra_special_tokens={"image_token": "<image>"},
        pad_token="<|pad|>",
    ),
    "split_special_tokens": _json(
        byte_level(_END, _END_OF_TURN),
        "qwen2",
        _GENERIC,
        split_special_tokens=True,
        eos_token=_END,
        pad_token=_END_OF_TURN,
    ),
    "llama_json": _json(llama_json, "llama", "LlamaTokenizer", add_bos_token=True),
    "llama_json_legacy": _json(llama_json, "llama", "LlamaTokenizer", legacy=True),
    "llama_json_no_prefix": _json(
        llama_json,
        "llama",
        "LlamaTokenizer",
        add_prefix_space=False,
        add_bos_token=False,
        add_eos_token=True,
    ),
    "phi3": _json(llama_json, "phi3", "LlamaTokenizer", added_tokens_decoder=_PHI3),
    "llama3": _json(
        byte_level(
            _BEGIN,
            "<|eot_id|>",
            post=lambda rust: processors.Sequence(
                [processors.ByteLevel(trim_offsets=False), _begins(_BEGIN)(rust)]
            ),
        ),
        "llama",
        _GENERIC,
        bos_token=_BEGIN,
        eos_token="<|eot_id|>",
        clean_up_tokenization_spaces=True,
    ),
    "byte_level_llama_class": _json(
        byte_level("<s>", "</s>", post=_begins("<s>")), "llama", "LlamaTokenizerFast"
    ),
    "mistral_json": _json(llama_json, "mistral", "LlamaTokenizer", add_eos_token=True),
    "qwen2_json": _json(
        byte_level(_END, "<|im_start|>", _END_OF_TURN, normalizer=normalizers.NFC()),
        "qwen2",
        "Qwen2Tokenizer",
        eos_token=_END_OF_TURN,
        pad_token=_END,
    ),
    "gpt_neox": _json(
        byte_level(_END, "<|padding|>"), "gpt_neox", "GPTNeoXTokenizer", add_bos_token=True
    ),
    "gemma_json": _json(
        unigram("<pad>", "<eos>", "<bos>", "<unk>", prefix="never"),
        "albert",
        _GENERIC,
        bos_token="<bos>",
        add_bos_token=True,
    ),
    "t5_json": _json(
        unigram("<pad>", "</s>", "<unk>", *_SENTINELS),
        "t5",
        "T5Tokenizer",
        extra_ids=8,
        clean_up_tokenization_spaces=True,
    ),
    "xlm_roberta_json": _json(
        unigram("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "xlm-roberta", "XLMRobertaTokenizer"
    ),
    "mbart_json": _json(
        unigram("<s>", "<pad>", "</s>", "<unk>", "ar_AR", "de_DE", "en_XX", "<mask>"),
        "mbart",
        "MBartTokenizer",
        **_GERMAN,
    ),
    "bert_json": _json(
        _wordpiece, "bert", "BertTokenizer", do_lower_case=True, clean_up_tokenization_spaces=True
    ),
    "bert_json_cased": _json(
        _wordpiece, "bert", "BertTokenizer", do_lower_case=False, strip_accents=True
    ),
    "bert_padded": _json(_padded, "bert", "BertTokenizer"),
    "distilbert_json": _json(_wordpiece, "distilbert"),
    "wordpiece_generic": _json(
        _wordpiece, "modernbert", _GENERIC, clean_up_tokenization_spaces=True, mask_token="[MASK]"
    ),
    "word_level": _json(word_level, "bert", _GENERIC, unk_token="[UNK]"),
    "unigram_generic": _json(
        unigram("<s>", "</s>", "<unk>", "<pad>"),
        "llama",
        _GENERIC,
        clean_up_tokenization_spaces=True,
        **_TEXT,
    ),
    "bloom": _json(
        byte_level("<unk>", "<s>", "</s>", "<pad>"),
        "bloom",
        "BloomTokenizerFast",
        add_prefix_space=True,
        **_TEXT,
    ),
    "deberta": _json(
        byte_level("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"),
        "deberta",
        "DebertaTokenizer",
        add_prefix_space=True,
    ),
    "whole_words": _json(
        byte_level(_END),
        "gpt2",
        _GENERIC,
        added_tokens_decoder={
            "0": added(_END, special=True),
            "400": added("the", single_word=True, normalized=True),
            "401": added("<b>", lstrip=True, rstrip=True),
        },
    ),
}
FOLDERS = OLD | MODERN
_CODES = """af am ar ast az ba be bg bn br bs ca ceb cs cy da de el en es et fa ff fi fr fy ga gd
gl gu ha he hi hr ht hu hy id ig ilo is it ja jv ka kk km kn ko lb lg ln lo lt lv mg mk ml mn mr ms
my ne nl no ns oc or pa pl ps pt ro ru sd si sk sl so sq sr ss su sv sw ta th tl tn tr uk ur uz vi
wo xh yi yo zh zu"""
_LANGUAGES = [f"__{code}__" for code in _CODES.split()]
PYTHON = {
    "byt5": _kind(nothing, "t5", "ByT5Tokenizer", extra_ids=5),
    "byt5_names": _kind(
        nothing,
        "t5",
        "ByT5Tokenizer",
        extra_ids=8,
        eos_token="</s>",
        additional_special_tokens=_SENTINELS,
    ),
    "esm": _kind(amino_acids, "esm", "EsmTokenizer"),
    "m2m_100": _kind(
        shuffled, "m2m_100", "M2M100Tokenizer", src_lang="fr", additional_special_tokens=_LANGUAGES
    ),
    "m2m_100_no_names": _kind(shuffled, "m2m_100", "M2M100Tokenizer"),
    "siglip": _kind(_t5, "siglip", "SiglipTokenizer"),
    "siglip_cased": _kind(_t5, "siglip", "SiglipTokenizer", do_lower_case=False, pad_token="</s>"),
}
"""Classes of transformers that are Python code, and have no tokenizer of the library."""
REFUSED = {
    "m2m_100_lacks_a_piece": _kind(
        lambda folder: shuffled(folder, leave_out=["e"]), "m2m_100", "M2M100Tokenizer"
    ),
    "marian": _kind(marian, "marian", "MarianTokenizer"),
    "bert_japanese": _kind(words, "bert", "BertJapaneseTokenizer", word_tokenizer_type="basic"),
    "gpt_sw3": _kind(sentencepiece("spiece.model"), "gpt2", "GPTSw3Tokenizer"),
}
"""Classes of Python code that give ids which no tokenizer of the library gives."""


def make(folder, kind):
    """Writes a folder of a kind."""
    vocabulary, model_type, settings = (FOLDERS | PYTHON | REFUSED)[kind]
    folder.mkdir(exist_ok=True)
    vocabulary(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if settings:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
