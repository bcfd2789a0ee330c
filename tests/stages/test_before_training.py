"""What a run can find out before it trains, it says before it trains."""

import numpy as np
import pytest

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
