import pytest

from jaxformer.config.overrides import parse
from jaxformer.data import Bytes
from jaxformer.data.tasks import ColumnFile, ConllU, TaggedText
from jaxformer.errors import DataError

# As in UD_French-GSD and UD_English-EWT: ranges, an empty node, comments, SpaceAfter, a form with
# a blank in it, and no empty line at the end.
FRENCH = """\
# newdoc id = a
# sent_id = fr-1
# text = Il parle du chien, 10 000 fois.
1	Il	il	PRON	PRP	Gender=Masc|Number=Sing	2	nsubj	_	_
2	parle	parler	VERB	VBZ	Number=Sing|Person=3	0	root	_	_
3-4	du	_	_	_	_	_	_	_	_
3	de	de	ADP	IN	_	5	case	_	_
4	le	le	DET	DT	Gender=Masc|Number=Sing	5	det	_	_
5	chien	chien	NOUN	NN	Gender=Masc|Number=Sing	2	obl	_	SpaceAfter=No
6	,	,	PUNCT	,	_	8	punct	_	_
7	10 000	10000	NUM	CD	NumType=Card	8	nummod	_	_
8	fois	fois	NOUN	NNS	Gender=Fem|Number=Plur	2	obl	_	SpaceAfter=No
9	.	.	PUNCT	.	_	2	punct	_	_

# sent_id = en-1
# text = I don't, and she "likes" it.
1	I	I	PRON	PRP	Number=Sing	2	nsubj	2:nsubj	_
2-3	don't	_	_	_	_	_	_	_	SpaceAfter=No
2	do	do	AUX	VBP	_	0	root	0:root	_
3	n't	not	PART	RB	_	2	advmod	2:advmod	_
4	,	,	PUNCT	,	_	2	punct	_	_
4.1	like	like	VERB	VB	_	_	_	2:conj	CopyOf=7
5	and	and	CCONJ	CC	_	7	cc	_	_
6	she	she	PRON	PRP	Number=Sing	7	nsubj	_	_
7	likes	like	VERB	VBZ	Number=Sing	2	conj	_	_
8	it	it	PRON	PRP	Number=Sing	7	obj	_	SpaceAfter=No
9	.	.	PUNCT	.	_	2	punct	_	_"""


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "fr-ud-train.conllu"
    file.write_text(FRENCH, encoding="utf-8")
    return str(file)


def test_syntactic_words_with_their_tags(path):
    french, english = ConllU(path).sentences()
    assert (french.name, english.name) == ("fr-1", "en-1")
    assert "".join(word.text for word in french.words) == "Il parle de le chien, 10 000 fois."
    assert "".join(word.text for word in english.words) == "I don't, and she likes it."
    tags = "PRON VERB ADP DET NOUN PUNCT NUM NOUN PUNCT"
    assert [word.tag for word in french.words] == tags.split()
    tags = "PRON AUX PART PUNCT CCONJ PRON VERB PRON PUNCT"
    assert [word.tag for word in english.words] == tags.split()
    assert [word.text for word in english.words][:5] == ["I", " do", "n't", ",", " and"]
    assert english.words[4].where == f"{path}:23"


def test_other_tags(path):
    for tag, expected in {
        "XPOS": "PRP VBZ IN DT NN , CD NNS .",
        "upos": "PRON VERB ADP DET NOUN PUNCT NUM NOUN PUNCT",
        "Number": "Sing Sing _ Sing Sing _ _ Plur _",
        "deprel": "nsubj root case det obl punct nummod obl punct",
    }.items():
        french = next(ConllU(path, tag=tag).sentences())
        assert [word.tag for word in french.words] == expected.split(), tag


def test_training_data(path, tmp_path):
    default = TaggedText(train=ColumnFile("x"), tokenizer=Bytes(), batch_size=1)
    options = ["--train", "ConllU", "--train.path", path]
    config = parse(default, [*options, "--validation", "ConllU", "--validation.path", path], "p")
    data = config.prepare(tmp_path / "run")
    assert data.train.num_rows == 2
    assert " ".join(data.labels) == "ADP AUX CCONJ DET NOUN NUM PART PRON PUNCT VERB"


LINE = "1\tHe\the\tPRON\tPRP\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LINE.replace("\t", " "), r":1: 1 fields between tabs: must be the 10 of CoNLL-U, ID FORM"),
        (LINE + "2\truns\trun\tVERB\n", r":2: 4 fields between tabs"),
        ("# x\n" + LINE + LINE, r":3: the id '1': must be 2, a range from it \(2-3\) or an empty"),
        (LINE + "3-4\tdu" + "\t_" * 8, r":2: the id '3-4': must be 2"),
        (
            "1-2\tdu" + "\t_" * 8 + "\n" + LINE,
            r":2: the sentence ends before the word 2 of a range",
        ),
        (LINE.replace("PRON", "_"), r":1: the word 'He' has no UPOS tag"),
        ("0.1\tdu" + "\t_" * 8 + "\n", r":1: the sentence has no words"),
    ],
)
def test_mistakes_name_the_line(text, message, tmp_path):
    file = tmp_path / "a.conllu"
    file.write_text(text)
    with pytest.raises(DataError, match=r"a\.conllu" + message):
        list(ConllU(str(file)).sentences())


def test_a_tag_that_no_word_has(path):
    with pytest.raises(DataError, match=r"conllu: tag = 'XPSO': no word has such a tag; .*'XPOS'"):
        list(ConllU(path, tag="XPSO").sentences())
