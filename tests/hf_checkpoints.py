"""Hugging Face checkpoints as people have them: random weights, a trained tokenizer, side files.

transformers writes every file, so they look as on the hub. `save_checkpoint("llama", folder)`.
"""

from pathlib import Path

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

import jaxformer.data.chat

CHATML = Path(jaxformer.data.chat.__file__).with_name("templates") / "chatml.jinja"
"""A chat template with the marks of what the model is to learn."""

SENTENCES = tuple(
    f"{subject} {verb} the {adjective} {thing}{end}"
    for subject in ("She", "The old captain", "Nobody", "A tiny robot", "My neighbour's dog")
    for verb in ("paints", "counted", "will find", "doesn't like", "sells")
    for adjective, thing in (("red", "boat"), ("frozen", "lake"), ("seventh", "theorem"))
    for end in (".", "?", " at 10:45, in Zürich!")
)
"""Text to train tokenizers on, and to make data of."""


def save_checkpoint(kind: str, folder: str | Path, seed: int = 0, **changes) -> Path:
    """Saves a tiny model with random weights and everything that travels beside it.

    Args:
        kind: A key of `KINDS`.
        folder: Where to write.
        seed: Of the weights.
        **changes: Fields of its configuration.

    Returns:
        The folder.
    """
    import torch
    import transformers

    folder, (class_name, fields, tokenizer) = Path(folder), KINDS[kind]
    torch.manual_seed(seed)
    tokenizer = tokenizer()
    model_class = getattr(transformers, class_name)
    ids = {
        f"{role}_token_id": getattr(tokenizer, f"{role}_token_id")
        for role in ("bos", "eos", "pad")
        if getattr(tokenizer, f"{role}_token_id") is not None
    }
    config = model_class.config_class(**{"vocab_size": len(tokenizer)} | ids | fields | changes)
    model = model_class(config).eval()
    for parameter in model.parameters():  # zeros and ones would hide mistakes
        parameter.data += 0.02 * torch.randn_like(parameter)
    if model.can_generate():
        model.generation_config.update(do_sample=True, temperature=0.7, top_p=0.9, max_length=60)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_bpe(special: tuple[str, ...], **roles):
    """A byte-level BPE tokenizer, as of GPT-2 and Llama 3."""
    rust = Tokenizer(models.BPE())
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    rust.train_from_iterator(SENTENCES, trainer)
    return rust, roles


def chat_tokenizer():
    """Llama's kind: a BOS token before every text, and a chat template."""
    bos = "<|begin|>"
    rust, roles = byte_bpe(
        (bos, "<|end|>", "<|im_start|>", "<|im_end|>"), bos_token=bos, eos_token="<|im_end|>"
    )
    rust.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, 0)]
    )
    return fast(
        rust, **roles, pad_token="<|end|>", chat_template=CHATML.read_text(), model_max_length=128
    )


def gpt2_tokenizer():
    """GPT-2's kind: one special token for everything."""
    end = "<|endoftext|>"
    rust, roles = byte_bpe((end,), bos_token=end, eos_token=end)
    return fast(rust, **roles, model_max_length=128)


def bert_tokenizer():
    """BERT's kind: lower-case WordPiece with [CLS] and [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    rust = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    rust.normalizer = normalizers.BertNormalizer(lowercase=True)
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    rust.train_from_iterator([sentence.lower() for sentence in SENTENCES], trainer)
    rust.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]"}
    return fast(rust, **roles, sep_token="[SEP]", mask_token="[MASK]", model_max_length=64)


def roberta_tokenizer():
    """RoBERTa's kind: byte-level BPE with <s> and </s>, two of them between texts."""
    special = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    rust, _ = byte_bpe(special)
    rust.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    return fast(rust, **roles, pad_token="<pad>", mask_token="<mask>", model_max_length=48)


def t5_tokenizer():
    """T5's kind: SentencePiece's unigram model, </s> after every text, sentinels."""
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    rust = unigram("<pad>", "</s>", "<unk>", *sentinels, vocab_size=292)()
    rust.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)]
    )
    roles = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return fast(rust, **roles, extra_special_tokens=sentinels, model_max_length=64)


def unigram(*special, prefix="always", vocab_size=300):
    """A Unigram model with special tokens first."""

    def make():
        rust = Tokenizer(models.Unigram())
        rust.normalizer = normalizers.NFKC()
        rust.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prefix)
        rust.decoder = decoders.Metaspace(prepend_scheme=prefix)
        trainer = trainers.UnigramTrainer(
            vocab_size=vocab_size,
            special_tokens=list(special),
            unk_token="<unk>",
            show_progress=False,
        )
        rust.train_from_iterator(SENTENCES, trainer)
        return rust

    return make


def fast(rust: Tokenizer, **fields):
    """The tokenizer as a class of transformers."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=rust, **fields)


_HEADS = {"num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 48}
_LLAMA = _HEADS | {
    "num_key_value_heads": 2,
    "intermediate_size": 80,
    "max_position_embeddings": 128,
}
_GPT2 = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 128}
_GPT2 |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
_BERT = _HEADS | {"intermediate_size": 80, "max_position_embeddings": 64}
_BERT |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
LABELS = {
    "id2label": {0: "negative", 1: "neutral", 2: "positive"},
    "label2id": {"negative": 0, "neutral": 1, "positive": 2},
}
_T5 = {"d_model": 48, "d_kv": 8, "d_ff": 80, "num_layers": 2, "num_heads": 6, "dropout_rate": 0.0}
_T5 |= {"decoder_start_token_id": 0}
_BART = {"d_model": 24, "max_position_embeddings": 64}
_SIDE = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
_BART |= {f"{side}_{name}": _SIDE[name] for side in ("encoder", "decoder") for name in _SIDE}

KINDS = {
    "llama": ("LlamaForCausalLM", _LLAMA, chat_tokenizer),
    "gpt2": ("GPT2LMHeadModel", _GPT2, gpt2_tokenizer),
    "bert": ("BertForMaskedLM", _BERT, bert_tokenizer),
    "bert_classifier": ("BertForSequenceClassification", _BERT | LABELS, bert_tokenizer),
    "bert_tagger": ("BertForTokenClassification", _BERT | LABELS, bert_tokenizer),
    "bert_reader": ("BertForQuestionAnswering", _BERT, bert_tokenizer),
    "bert_base": ("BertModel", _BERT, bert_tokenizer),
    "llama_classifier": ("LlamaForSequenceClassification", _LLAMA | LABELS, chat_tokenizer),
    "gpt2_classifier": ("GPT2ForSequenceClassification", _GPT2 | LABELS, gpt2_tokenizer),
    "gpt2_tagger": ("GPT2ForTokenClassification", _GPT2 | LABELS, gpt2_tokenizer),
    "roberta": ("RobertaForMaskedLM", _BERT | {"type_vocab_size": 1}, roberta_tokenizer),
    "t5": ("T5ForConditionalGeneration", _T5, t5_tokenizer),
    "bart": ("BartForConditionalGeneration", _BART, roberta_tokenizer),
}
"""The class of transformers, its configuration, and its tokenizer."""
