"""Transcribing speech with Whisper."""
