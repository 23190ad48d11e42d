"""A small n-gram language model as an ARPA file, and what computes its scores as KenLM does."""

from pathlib import Path

ARPA = """\\data\\
ngram 1=7
ngram 2=5
ngram 3=1

\\1-grams:
-1.5\t<unk>
0\t<s>\t-0.4
-1.1\t</s>
-0.7\tAB\t-0.3
-0.9\tBA\t-0.2
-1.2\tA\t-0.1
-1.4\tBAA\t-0.25

\\2-grams:
-0.2\t<s> AB\t-0.15
-0.3\tAB A\t-0.05
-0.5\tA BA
-0.25\tBA </s>
-0.6\tBAA AB

\\3-grams:
-0.1\t<s> AB A

\\end\\
"""


def save_arpa(folder: Path) -> Path:
    file = folder / "words.arpa"
    file.write_text(ARPA)
    return file


class State:
    """The words behind which the next one comes, the last one last."""

    words: tuple[str, ...] = ()


class Config:
    pass


class ARPALoadComplain:
    NONE = 2


class Model:
    """Scores words with backoff: of the longest n-gram that the file has."""

    def __init__(self, path: str, config: Config | None = None):
        text = Path(path).read_text(errors="replace")
        if not text.startswith("\\data\\"):
            raise OSError(f"Cannot read model '{path}'")
        self.ngrams: dict[tuple[str, ...], tuple[float, float]] = {}
        for line in text.splitlines():
            fields = line.split("\t")
            if len(fields) > 1:
                backoff = float(fields[2]) if len(fields) > 2 else 0.0
                self.ngrams[tuple(fields[1].split())] = float(fields[0]), backoff
        self.order = max(map(len, self.ngrams))

    def __contains__(self, word: str) -> bool:
        return word != "<unk>" and (word,) in self.ngrams

    def BeginSentenceWrite(self, state: State) -> None:
        state.words = ("<s>",)

    def NullContextWrite(self, state: State) -> None:
        state.words = ()

    def BaseScore(self, before: State, word: str, after: State) -> float:
        word = word if (word,) in self.ngrams else "<unk>"
        context = before.words[-(self.order - 1) :]
        after.words = (*before.words, word)
        score = 0.0
        while (*context, word) not in self.ngrams:
            score += self.ngrams.get(context, (0.0, 0.0))[1]
            context = context[1:]
        return score + self.ngrams[(*context, word)][0]
