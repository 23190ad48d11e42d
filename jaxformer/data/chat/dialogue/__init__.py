"""Dialogues with a model: prompts of messages, and answers as messages with tool calls."""
