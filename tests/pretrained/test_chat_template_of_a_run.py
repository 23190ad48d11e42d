"""Which chat template a model answers with, and takes along: the one it was trained with."""

from jaxformer.pretrained.writing import own_template, template_folder


def test_the_template_of_training_comes_before_that_of_the_checkpoint(tmp_path):
    home, own = tmp_path / "huggingface", tmp_path / "tokenizer"
    home.mkdir()
    own.mkdir()
    (home / "chat_template.jinja").write_text("theirs")
    assert template_folder(home) == home
    assert own_template(home) is None
    (own / "chat_template.jinja").write_text("ours")
    assert template_folder(home) == own
    assert own_template(home) == "ours"
    (home / "chat_template.jinja").write_text("ours")
    assert own_template(home) is None  # the checkpoint's own file is kept, byte for byte


def test_a_checkpoint_has_no_other_template_than_its_own(tmp_path):
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer/chat_template.jinja").write_text("another folder's")
    home = tmp_path / "checkpoint"
    home.mkdir()
    assert template_folder(home) == home
    assert own_template(home) is None
    assert own_template(None) is None
