"""Preferences: prompts, each with a chosen and a rejected answer."""

import json
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from jaxformer.data.bad_rows import each
from jaxformer.data.chat.choice import encoders
from jaxformer.data.chat.conversations import ConversationData
from jaxformer.data.chat.preferences.pairs import FittingRows, PairExamples, encoded_pairs
from jaxformer.data.chat.preferences.rows import Preference, PreferenceRow


@dataclass(frozen=True)
class PreferenceData(ConversationData[PreferenceRow]):
    """Prompts, each with a chosen and a rejected answer: the data of DPO.

    A row of a batch is a pair, the chosen side first: "inputs" and "targets" int32 [2, T], and
    "weights" float32 [2, T], 1 where the target is a token of the answer. A text without messages
    is continued unchanged; messages become text by the chat template.
    """

    preference: ClassVar[str] = "DPO"
    sequences_per_row: ClassVar[int] = 2
    longest_row: ClassVar[int] = 1024

    train: str = "preferences.jsonl"
    """The training table: .jsonl, .parquet or another table of messages or texts."""

    columns: Preference = Preference()
    """The names of the columns."""

    def read_record(self, record):
        return self.columns.read(record)

    def side_of(self, row: PreferenceRow) -> str:
        # Pairs with the same prompt are on the same side.
        return json.dumps(row.prompt, default=str)

    def conversations(self, row: PreferenceRow) -> PreferenceRow:
        return row

    def render(self, rows, tokenizer, folder, bad) -> FittingRows:
        sides = [side for row in rows for side in row]
        found = []
        for encoder, own in encoders(sides, folder, self.template, self.tokenizer, tokenizer):
            both = list(zip(own[::2], own[1::2], strict=True))
            found += (pair for _, pair in each(partial(encoded_pairs, encoder), both, bad))
        return FittingRows.of(found, self.sequence_length, self.too_long, "pair")

    def examples(self, rendered: FittingRows, tokenizer) -> PairExamples:
        return PairExamples(rendered.kept, self.sequence_length, tokenizer.pad_id)
