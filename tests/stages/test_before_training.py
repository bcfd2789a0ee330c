"""What a run can find out before it trains, it says before it trains."""

import numpy as np
import pytest
from tiny_files import write_pairs

from sparsefront.errors import InvalidSetting
from sparsefront.stages import dense

SMALL = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8"]


def test_unreadable_test_part(run, tmp_path, monkeypatch):
    images, labels = np.zeros((40, 32, 32, 3), np.uint8), np.arange(40) % 10
    images[:, 0, 0, 0] = np.arange(40)  # equal ones are not divided
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8] + 9)
    monkeypatch.setattr(dense, "fit", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(InvalidSetting, match=r"^dataset\.path=.*images\.npz: y_test is int64 from 9 to 16"):
        run("dataset=cifar10", f"dataset.path={tmp_path / 'images.npz'}", *SMALL)


TRANSLATIONS = {
    "unequal": (
        "test.de",
        lambda text: text + "mehr\n",
        [],
        r"^dataset\.path=.*test.en has 12 lines and test.de has 13",
    ),
    "empty": (
        "test.en",
        lambda text: "\n" + text.partition("\n")[2],
        [],
        r"^dataset\.path=.*line 1 of test.en is empty",
    ),
    "long": (
        "test.en",
        lambda text: "x " * 99 + text,
        [],
        r"^dataset\.max_length=24: pair 1 of test has a sentence of",
    ),
    "no rows": ("train.de", lambda text: "", [], r"^dataset\.path=.*train.de has 0"),
    "beam": ("test.de", str, ["dataset.beam=0"], r"^dataset\.beam=0: "),
    "positions": (
        "test.de",
        str,
        ["model.max_positions=16"],
        r"^model\.max_positions=16: sentences of the dataset have up",
    ),
}


@pytest.mark.parametrize(("name", "change", "more", "message"), TRANSLATIONS.values(), ids=TRANSLATIONS)
def test_unusable_translations_are_told(run, tmp_path, monkeypatch, name, change, more, message):
    folder = write_pairs(tmp_path / "pairs", test=12)
    (folder / name).write_text(change((folder / name).read_text()))
    monkeypatch.setattr(dense, "fit", lambda *_, **__: pytest.fail("it trains"))
    pairs = ["model=transformer_mt", "model.size=tiny", "dataset=multi30k", f"dataset.path={folder}", "trainer=cpu"]
    with pytest.raises(InvalidSetting, match=message) as caught:
        run(*pairs, "dataset.max_length=24", "dataset.vocabulary=320", "measure.device=cpu", "granularity=16", *more)
    assert "\n" not in str(caught.value)
