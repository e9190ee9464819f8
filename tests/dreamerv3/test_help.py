from dreamerv3.config import compose, load_configs
from dreamerv3.help import comments, help_text


def test_every_key_and_preset_has_a_comment():
    assert comments().keys() == {*compose().flat, *load_configs()}
    assert all(len(comment) > 5 for comment in comments().values())


def test_text_shows_them_with_defaults():
    lines = [" ".join(line.split()) for line in help_text().splitlines()]
    assert "batch_length 64 steps of a sequence that losses are computed on" in lines
    assert "size1m about 1 million parameters" in lines
