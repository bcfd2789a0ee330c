"""What a run can find out before it trains, it says before it trains."""

import numpy as np
import pytest

from sparsefront.errors import InvalidSetting
from sparsefront.stages import dense

SMALL = ["trainer=cpu", "measure.device=cpu", "model.dim=64", "model.depth=1", "measure.evaluate_limit=8"]


def test_a_test_part_that_cannot_be_read_is_told_before_the_training(run, tmp_path, monkeypatch):
    images, labels = np.zeros((40, 32, 32, 3), np.uint8), np.arange(40) % 10
    images[:, 0, 0, 0] = np.arange(40)  # equal ones are not divided
    np.savez(tmp_path / "images.npz", x_train=images, y_train=labels, x_test=images[:8], y_test=labels[:8] + 9)
    monkeypatch.setattr(dense, "fit", lambda *_, **__: pytest.fail("it trains"))
    with pytest.raises(InvalidSetting, match=r"^dataset\.path=.*images\.npz: y_test is int64 from 9 to 16"):
        run("dataset=cifar10", f"dataset.path={tmp_path / 'images.npz'}", *SMALL)


def test_a_tokenizer_that_cannot_be_read_is_the_models(run, tmp_path):
    """Its files are read while the data is: the complaint still names the model."""
    from transformers import BertConfig, BertForSequenceClassification

    task, model = tmp_path / "SST-2", tmp_path / "model"
    task.mkdir()
    for part in ("train", "dev"):
        (task / f"{part}.tsv").write_text("sentence\tlabel\n" + "good\t1\nbad\t0\n" * 8)
    tiny = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    BertForSequenceClassification(BertConfig(vocab_size=30, **tiny)).save_pretrained(model)
    (model / "tokenizer.json").write_text("{")
    bert = ["model=bert", f"model.path={model}", "dataset=glue", f"dataset.path={tmp_path}", "trainer=cpu"]
    with pytest.raises(InvalidSetting, match=r"^model\.path=.*: its tokenizer cannot be read: "):
        run(*bert, "measure.device=cpu", "pattern=n_m", "sparsity=0.5")


def test_a_missing_stage_swap_is_not_blamed_on_measure(run, tmp_path):
    run(*SMALL)
    with pytest.raises(InvalidSetting, match=r"^stages=\[report\]: was measured with kernels swapped in.*add swap"):
        run(*SMALL, "stages=[report]")
    assert run(*SMALL, "stages=[swap,measure,report]").quality.sparse is not None
    with pytest.raises(InvalidSetting, match="^stages=.*stage measure was never finished.*add measure"):
        run(*SMALL, "stages=[report]", "kernel=none")
