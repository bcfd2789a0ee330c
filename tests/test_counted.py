"""One thing is no plural."""

import pytest

from sparsefront.progress import counted


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), ("1", "1 run"), ("0.5", "0.5 runs")]
)
def test_a_number_with_its_noun(number, text):
    assert counted(number, "run") == text
