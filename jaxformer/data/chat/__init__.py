"""Chat and instruction data: conversations, chat templates, answers and preferences."""

from jaxformer.data.chat.config import ChatData
from jaxformer.data.chat.encoder import ChatEncoder, EncodedChat
from jaxformer.data.chat.examples import ChatPacking, PackedChats, PaddedChats
from jaxformer.data.chat.preferences.config import PreferenceData
from jaxformer.data.chat.preferences.unpaired import UnpairedPreferenceData
from jaxformer.data.chat.rows import (
    Alpaca,
    AnyFormat,
    ChatFormat,
    Messages,
    PromptCompletion,
    ShareGPT,
)
from jaxformer.data.chat.template import ChatTemplate, Conversation, read_chat_template

__all__ = [
    "Alpaca",
    "AnyFormat",
    "ChatData",
    "ChatEncoder",
    "ChatFormat",
    "ChatPacking",
    "ChatTemplate",
    "Conversation",
    "EncodedChat",
    "Messages",
    "PackedChats",
    "PaddedChats",
    "PreferenceData",
    "PromptCompletion",
    "ShareGPT",
    "UnpairedPreferenceData",
    "read_chat_template",
]
