"""Tiny files of GLUE's nine tasks, with the columns and the quirks of the real ones."""

import json
from pathlib import Path

WORDS = ("good", "bad", "old", "new", "red", "slow", "kind", "odd")
CHARACTERS = 'She said "the {} boat isn\'t {}"'


def sentence(number: int) -> str:
    return CHARACTERS.format(WORDS[number % 8], WORDS[(number // 8) % 8])


def write_table(file: Path, header: str | None, rows, end: str = "\n") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = [header.replace(" | ", "\t")] if header else []
    lines += ["\t".join(map(str, row)) for row in rows]
    file.write_text(end.join(lines) + end, encoding="utf-8", newline="")


def _splits(folder, header, rows, train, dev):
    """Writes the first rows as both labelled splits of a task."""
    write_table(folder / "train.tsv", header, rows[:train])
    write_table(folder / "dev.tsv", header, rows[:dev])


def _cola(root, train, dev, test):
    folder = root / "CoLA"
    rows = [("gj04", n % 2, "" if n % 2 else "*", sentence(n)) for n in range(max(train, dev))]
    _splits(folder, None, rows, train, dev)
    queries = [(n, sentence(n)) for n in range(test)]
    write_table(folder / "test.tsv", "index | sentence", queries)


def _sst2(root, train, dev, test):
    folder = root / "SST-2"
    rows = [(sentence(n) + " ", n % 2) for n in range(max(train, dev))]
    _splits(folder, "sentence | label", rows, train, dev)
    write_table(folder / "test.tsv", "index | sentence", [(n, sentence(n)) for n in range(test)])


def _mrpc(root, train, dev, test):
    folder, header = root / "MRPC", "Quality | #1 ID | #2 ID | #1 String | #2 String"
    rows = [(n % 2, 7 * n, 7 * n + 1, sentence(n), sentence(n + 1)) for n in range(train + dev)]
    write_table(folder / "train.tsv", "\ufeff" + header, rows[:train], "\r\n")
    write_table(folder / "dev.tsv", "\ufeff" + header, rows[train:], "\r\n")
    queries = [(n, n, n + 1, sentence(n), sentence(n + 2)) for n in range(test)]
    write_table(folder / "test.tsv", "index" + header.removeprefix("Quality"), queries)


def as_microsoft_does(root: Path) -> None:
    """Replaces MRPC's files by Microsoft's two and the ids of the dev split."""
    folder = root / "MRPC"
    train, dev = (
        (folder / f"{name}.tsv").read_text("utf-8-sig").splitlines() for name in ("train", "dev")
    )
    header, *queries = (folder / "test.tsv").read_text("utf-8").splitlines()
    # The two splits stand mixed.
    mixed = [line for pair in zip(train[1:], dev[1:], strict=False) for line in pair]
    mixed += train[len(dev) :]
    table = "\ufeff" + "\r\n".join([train[0], *mixed]) + "\r\n"
    (folder / "msr_paraphrase_train.txt").write_text(table, "utf-8", newline="")
    tested = ["1\t" + line.split("\t", 1)[1] for line in queries]
    test_table = "\r\n".join([header.replace("index", "\ufeffQuality"), *tested]) + "\r\n"
    (folder / "msr_paraphrase_test.txt").write_text(test_table, "utf-8", newline="")
    pairs = ["\t".join(line.split("\t")[1:3]) for line in dev[1:]]
    (folder / "mrpc_dev_ids.tsv").write_text("\n".join(pairs) + "\n")
    for name in ("train", "dev", "test"):
        (folder / f"{name}.tsv").unlink()


def _qqp(root, train, dev, test):
    folder, header = root / "QQP", "id | qid1 | qid2 | question1 | question2 | is_duplicate"
    count = max(train, dev)
    rows = [(n, n, n + 1, sentence(n), sentence(n + 3), n % 2) for n in range(count)]
    _splits(folder, header, rows, train, dev)
    with (folder / "train.tsv").open("a") as file:  # a line break within a question
        file.write("91\t92\t93\tHow do I\n\nread this?\tHow do I read it?\t1\n")
    queries = [(n, sentence(n), sentence(n + 4)) for n in range(test)]
    write_table(folder / "test.tsv", "id | question1 | question2", queries)


def _stsb(root, train, dev, test):
    header = "index | genre | filename | year | old_index | source1 | source2 | sentence1"
    header += " | sentence2"
    folder = root / "STS-B"

    def row(n):
        about = ("news", "MSRpar", "2012test", f"{n:04}", "none", "none")
        return (n, *about, sentence(n), sentence(9))

    rows = [(*row(n), f"{n % 11 / 2:.3f}") for n in range(max(train, dev))]
    _splits(folder, header + " | score", rows, train, dev)
    write_table(folder / "test.tsv", header, [row(n) for n in range(test)])


def _mnli(root, train, dev, test):
    header = "index | promptID | pairID | genre | sentence1_binary_parse | sentence2_binary_parse"
    header += " | sentence1_parse | sentence2_parse | sentence1 | sentence2"
    labels, folder = ("neutral", "contradiction", "entailment"), root / "MNLI"

    def row(n):
        about = (f"{n}n", f"{n}n", "fiction", "( a", "( b", "(R a", "(R b")
        return (n, *about, sentence(n), sentence(3))

    rows = [(*row(n), labels[n % 3], labels[n % 3]) for n in range(train)]
    write_table(folder / "train.tsv", header + " | label1 | gold_label", rows)
    votes = "".join(f" | label{n}" for n in range(1, 6)) + " | gold_label"
    for side in ("matched", "mismatched"):
        rows = [(*row(n), *[labels[n % 3]] * 6) for n in range(dev)]
        write_table(folder / f"dev_{side}.tsv", header + votes, rows)
        write_table(folder / f"test_{side}.tsv", header, [row(n) for n in range(test)])
    queries = [(n, sentence(n), sentence(n + 5)) for n in range(test)]
    write_table(root / "diagnostic" / "diagnostic.tsv", "index | sentence1 | sentence2", queries)


def _pairs(title, columns, labels):
    def write(root, train, dev, test):
        count = max(train, dev)
        rows = [(n, sentence(n), sentence(n + 1), labels[n % 2]) for n in range(count)]
        _splits(root / title, f"index | {columns} | label", rows, train, dev)
        queries = [(n, sentence(n), sentence(n + 1)) for n in range(test)]
        write_table(root / title / "test.tsv", f"index | {columns}", queries)

    return write


_ENTAILS = ("not_entailment", "entailment")
TASKS = {
    "cola": _cola,
    "sst2": _sst2,
    "mrpc": _mrpc,
    "stsb": _stsb,
    "qqp": _qqp,
    "mnli": _mnli,
    "qnli": _pairs("QNLI", "question | sentence", _ENTAILS),
    "rte": _pairs("RTE", "sentence1 | sentence2", _ENTAILS),
    "wnli": _pairs("WNLI", "sentence1 | sentence2", (1, 0)),
}


def write_glue(root: Path, *tasks: str, train: int = 40) -> Path:
    """Writes the files of some tasks, or of all."""
    for task in tasks or TASKS:
        TASKS[task](root, train, dev=18, test=7)
    return root


def write_parquet(root: Path, task: str, columns: dict[str, list], split: str) -> None:
    """Writes a split as the Hugging Face hub has it."""
    import pyarrow
    import pyarrow.parquet

    folder = root / task
    folder.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pydict(json.loads(json.dumps(columns)))
    pyarrow.parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
