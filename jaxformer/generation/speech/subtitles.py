"""Transcripts as text, subtitles and JSON."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Transcript = Mapping[str, Any]
"""The result of `jaxformer.transcribe`."""


def plain_text(transcript: Transcript) -> str:
    """Returns the text, a line for each segment if there are segments."""
    segments = transcript.get("segments")
    if segments is None:
        return transcript["text"] + "\n"
    return "".join(f"{segment['text'].strip()}\n" for segment in segments)


def timed_text(transcript: Transcript) -> str:
    """Returns a line for each segment, or word, with its times."""
    spans = [span for segment in transcript["segments"] for span in segment.get("words", [segment])]
    return "".join(
        f"[{clock(span['start'], '.')} --> {clock(span['end'], '.')}] {_said(span)}\n"
        for span in spans
    )


def srt(transcript: Transcript) -> str:
    """Returns subtitles in the format SubRip."""
    return "".join(
        f"{number}\n{clock(segment['start'], ',')} --> {clock(segment['end'], ',')}\n"
        f"{_said(segment)}\n\n"
        for number, segment in enumerate(transcript["segments"], start=1)
    )


def vtt(transcript: Transcript) -> str:
    """Returns subtitles in the format WebVTT."""
    cues = (
        f"{clock(segment['start'], '.')} --> {clock(segment['end'], '.')}\n{_said(segment)}\n\n"
        for segment in transcript["segments"]
    )
    return "WEBVTT\n\n" + "".join(cues)


def as_json(transcript: Transcript) -> str:
    """Returns the transcript as an object."""
    return json.dumps(transcript, ensure_ascii=False, indent=2) + "\n"


FORMATS: dict[str, Callable[[Transcript], str]] = {
    ".txt": plain_text,
    ".srt": srt,
    ".vtt": vtt,
    ".json": as_json,
}
"""Ending of a file -> the function that formats one transcript."""
TIMED = (".srt", ".vtt")
"""The endings of subtitles, which need times."""


def json_lines(transcripts: Sequence[Transcript]) -> str:
    """Returns an object in a line for each transcript."""
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in transcripts)


def clock(seconds: float, separator: str) -> str:
    """Returns a time as hours, minutes, seconds and milliseconds: "00:01:02,500"."""
    milliseconds = round(seconds * 1000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    whole, milliseconds = divmod(milliseconds, 1000)
    return f"{hours:02d}:{minutes:02d}:{whole:02d}{separator}{milliseconds:03d}"


def _said(span: Mapping[str, Any]) -> str:
    return span.get("word", span.get("text")).strip()
