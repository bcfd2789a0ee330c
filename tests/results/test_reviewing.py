"""The page for reviewers names fields and files that a run really has."""

import re
from pathlib import Path

import pytest

from sparsefront.results.record import result_fields
from sparsefront.verify.command_line import STATUS

PAGE = (Path(__file__).parents[2] / "docs" / "reviewing.md").read_text()
FIELDS = {field.name for field in result_fields()}
FILES = {"samples.json", ".hydra/overrides.yaml", ".hydra/config.yaml"}
FAMILIES = {"val_*": "val_sparse", "val_": "val_sparse", "*_standard_error": "sparse_standard_error"}
CHECKS = PAGE.partition("## What each check finds")[2]
LINES = [line.strip("| ").split(" | ") for line in CHECKS.splitlines() if line.startswith("| ")][2:]


@pytest.mark.parametrize(("question", "where"), [line[:2] for line in LINES])
def test_each_place_that_is_named_exists(question, where):
    named = [
        FAMILIES.get(name, name.partition(".")[0]) for name in re.findall(r"`([^`]+)`", where) if name not in FILES
    ]
    assert set(named) <= FIELDS, question


def test_every_digest_of_a_record_is_explained():
    controls = {"dense_continued_weights_sha256", "dense_distilled_weights_sha256"}
    digests = {"dataset_digest", "dense_weights_sha256", "masks_sha256"} | controls
    assert digests <= FIELDS and all(f"`{name}`" in PAGE for name in digests) and len(PAGE.splitlines()) <= 90


def test_the_last_lines_of_verify_are_those_of_the_page():
    told = {
        (word, int(status))
        for word, status in re.findall(r"^\| `([a-z, ]+)` \|.*\| (\d) \|$", PAGE, flags=re.MULTILINE)
    }
    assert told == set(STATUS.items())
