"""Transcripts of the sounds that a table names, for `jaxformer predict`."""

from jaxformer.generation.speech.api import transcribe
from jaxformer.pretrained.prediction.predictor import Predictor, Subject


class TranscriptPredictor(Predictor):
    """Predicts the transcript of each sound, as `transcribe` without options."""

    def __init__(self, subject: Subject, language: str | None = None):
        super().__init__(subject)
        self._options = {} if language is None else {"language": language}

    def _rows(self, records):
        files = (self.reader.file(name) for (name,) in self._texts(records))
        options = {"timestamps": "none"} | self._options
        written = (transcribe(self.subject.pretrained, file, **options) for file in files)
        return [{"transcript": found["text"]} for found in written]
