"""Pictures of masks in a run, and in a finished run that is shown again."""

import hashlib
import logging
import re
import shutil
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig

from sparsefront.config.validate import validate
from sparsefront.errors import InvalidSetting

SMALL = ("model.dim=64", "model.depth=1")
ON_CPU = ("trainer=cpu", "measure.device=cpu", *SMALL, "pattern=vector_wise", "granularity=32")
PICTURES = ("report.mask_pictures=true", "report.mask_layers=[fc1]")


def folder() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)


def in_page() -> list[str]:
    return re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,', (folder() / "report.html").read_text())


def test_finished_run_shows_its_pictures(full_run, caplog, tmp_path):
    first = full_run(*ON_CPU)
    assert not (folder() / "masks").exists() and not in_page()
    with caplog.at_level(logging.INFO):
        again = full_run(*ON_CPU, *PICTURES)
    assert "finished before" in caplog.text and again.identity.run_id == first.identity.run_id
    drawn = [name for name in again.sparsity.sparsity_per_layer if "fc1" in name]
    assert drawn and in_page() == ["density", *drawn]
    assert {path.name for path in (folder() / "masks").iterdir()} == {f"{name}.png" for name in in_page()}

    shutil.rmtree(tmp_path / "cache" / "recover")
    with caplog.at_level(logging.INFO):
        full_run(*ON_CPU, *PICTURES)
    assert "no pictures: the masks of this run are not stored any more" in caplog.text
    assert not (folder() / "masks").exists() and not in_page()


def test_results_keep_their_plans_digest(full_run, composed, tmp_path):
    plan = tmp_path / "PLAN.md"
    plan.write_text("Ten lines.\n")
    first = full_run(*ON_CPU, f"report.plan={plan}")
    assert first.identity.plan_sha256 == hashlib.sha256(plan.read_bytes()).hexdigest()
    plan.write_text("Nine lines, since one was slow.\n")
    assert full_run(*ON_CPU, f"report.plan={plan}").identity.plan_sha256 == first.identity.plan_sha256
    plan.unlink()
    with pytest.raises(InvalidSetting, match="^report.plan=.*PLAN.md: is no file"):
        validate(composed(*ON_CPU, f"report.plan={plan}"))


def test_store_that_cannot_be_appended_to(run, tmp_path, caplog):
    """As where somebody's own table, or a folder, lies at its place."""
    short = ("measure.evaluate_limit=8",)
    store = tmp_path / "results" / "rows.csv"
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text("name,price\napple,1\n")
    result = run(*ON_CPU, *short)
    assert result.identity.run_id in (folder() / "row.json").read_text()
    (told,) = [record.getMessage() for record in caplog.records if "not added" in record.getMessage()]
    assert told.startswith(f"not added to {store}: {store}: no table of results, since it has no column run_id")
    assert "\n" not in told and store.read_text() == "name,price\napple,1\n"
