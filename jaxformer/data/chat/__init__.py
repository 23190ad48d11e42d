"""Chat data: templates, conversations, preferences."""

from jaxformer.data.chat.config import ChatData
from jaxformer.data.chat.examples import PackedChats, PaddedChats
from jaxformer.data.chat.preferences import PreferenceData
from jaxformer.data.chat.rows import Alpaca, Messages, PromptCompletion, ShareGPT

__all__ = [
    "Alpaca",
    "ChatData",
    "Messages",
    "PackedChats",
    "PaddedChats",
    "PreferenceData",
    "PromptCompletion",
    "ShareGPT",
]
