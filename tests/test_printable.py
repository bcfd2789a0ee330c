"""What others wrote controls no terminal."""

import pytest

from sparsefront.errors import InvalidSetting, Obstacle, printable


@pytest.mark.parametrize(
    "text, shown",
    [
        ("n_m · 2:4 ± 0.5 %, größer, 日本, 👩‍💻", None),
        ("\x1b[2Jgone\x07", r"\x1b[2Jgone\x07"),
        ("over\rwritten\b", r"over\rwritten\x08"),
        ("\x9b31m", r"\x9b31m"),
        ("a\u202eb\u2066c\u200fd", r"a\u202eb\u2066c\u200fd"),
        ("two\u2028lines", r"two\u2028lines"),
        ("half \ud800, byte \udce4", r"half \ud800, byte \udce4"),
        ("tab\tnull\x00", r"tab\tnull\x00"),
    ],
)
def test_controls_are_shown_as_escapes(text, shown):
    assert printable(text) == printable(text, lines=True) == (text if shown is None else shown)
    printable(text).encode()


def test_messages_of_bad_input_are_printable():
    assert str(InvalidSetting("name", "\x1b]0;title\x07", "letters")) == r"name=\x1b]0;title\x07: letters"
    assert str(Obstacle("a\x1bb", None, "is \u202egone")) == r"a\x1bb: is \u202egone"
