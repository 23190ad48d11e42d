"""Texts that tell tokenizers apart."""

HARD_TEXTS = (
    "Hello world",
    " leading",
    "  two leading",
    "trailing ",
    "a  b   c    d",
    "a\tb\nc\r\nd\n\n\ne",
    "日本語のテキスト。漢字かな",
    "🙂👩‍👩‍👧‍👦 emoji 🏳️‍🌈",
    "naïve café ee\u0301 x\u0323\u0301",
    "12 345,678.90 ½ Ⅷ ①",
    "Ünïcode ﬁ ﬂ ａｂｃ",
    "\u00a0nbsp\u3000ideo\u2003em\u200bzero",
    "한국어 각 مرحبا",
    "def f(x):\n    return x\n",
    "``quoted'' don't WE'LL",
    "\0x\x7f",
    "A" * 300,
    "x" * 50 + " " + "🙂" * 20,
    "",
    "   ",
)
"""Spaces at the ends and in a row, lines, scripts without spaces, sequences of several code points,
digits, what normalisation changes, what no vocabulary has."""
