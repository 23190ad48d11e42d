"""A mixture of sources of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxformer.checks import POSITIVE, check_field, check_fields, check_types
from jaxformer.data.dataset import ExampleSource
from jaxformer.data.mixing import MixedExamples
from jaxformer.data.text.sources import Document, TextSource, digest_of


@dataclass(frozen=True)
class Mixture(TextSource):
    """Several sources, whose rows are mixed in given proportions.

    Each source is tokenised separately, holds out its own documents for validation, and has its own
    epochs: small ones are repeated while large ones have not been read once. The sources take turns
    by their weights, see `MixedExamples`. Without `weights` they are

        w_i = r_i^(1 / temperature),  r_i the number of rows of source i

    so that all sources are repeated equally often at temperature 1, and small sources more often at
    higher temperatures.

    References:
        Raffel et al. 2020, section 3.5.2, https://arxiv.org/abs/1910.10683
    """

    sources: tuple[TextSource, ...] = ()
    """The sources: "JsonLines TextFiles", whose fields are then --data.source.sources.0.path ..."""

    weights: tuple[float, ...] | None = None
    """The share of each source in the rows of training, scaled to sum to 1; None: by their sizes.
    """

    temperature: float = 1.0
    """Evens out the sizes if there are no weights: 1 keeps them, larger values make them more
    equal.
    """

    def __post_init__(self):
        check_types(self)
        check_field(
            self,
            "sources",
            len(self.sources) > 1,
            "two sources or more, such as JsonLines TextFiles",
        )
        nested = any(isinstance(source, Mixture) for source in self.sources)
        check_field(self, "sources", not nested, "sources that are not mixtures themselves")
        if self.weights is not None:
            fits = len(self.weights) == len(self.sources) and all(
                map(POSITIVE.allows, self.weights)
            )
            expected = f"a number above 0 for each of the {len(self.sources)} sources"
            check_field(self, "weights", fits, expected)
        check_fields(self, temperature=POSITIVE)

    def mixed(self) -> tuple[TextSource, ...]:
        return self.sources

    def mix(self, examples: Sequence[ExampleSource]) -> ExampleSource:
        # Nine digits are equal on all machines.
        sizes = [f"{len(source) ** (1 / self.temperature):.9g}" for source in examples]
        return MixedExamples(examples, self.weights or tuple(map(float, sizes)))

    def documents(self) -> Iterator[Document]:
        for number, source in enumerate(self.sources):
            for document in source.documents():
                yield Document(f"{number}/{document.name}", document.text)

    def fingerprint(self) -> str:
        return digest_of(["Mixture", *(source.fingerprint() for source in self.sources)])

    def former_fingerprint(self) -> str:
        return digest_of(["Mixture", *(source.former_fingerprint() for source in self.sources)])
