"""What one run writes for its reader: whole or not at all, small, and readable without a network."""

import errno
import os
from pathlib import Path

import pytest
from page_checks import assert_of_one_run

from sparsefront.results.run_report import Report, write_report

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"


def test_a_run_with_nothing_timed_is_still_drawn(tmp_path, make_result):
    result = make_result(latency_sparse_ms=None, latency_dense_ms=None, latency_device=None, sparse=None)
    paths = write_report(result, tmp_path, Report())
    assert [path.name for path in paths] == ["pareto.png", "report.html"]
    assert paths[0].read_bytes().startswith(PNG_MAGIC)
    page = paths[1].read_text()
    assert_of_one_run(page)
    assert "too small: 4 &lt; 8" in page, "layers that stayed dense are listed with their reason"


@pytest.mark.parametrize("name", ["report.html", "pareto.png"])
def test_a_full_disk_leaves_no_half_of_a_page(tmp_path, make_result, monkeypatch, name):
    write, rename = Path.write_text, os.replace

    def torn(path, text, **settings):
        if path.name.endswith(name):
            write(path, text[:100], **settings)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(path, text, **settings)

    def reject(source, target):
        if Path(target).name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        rename(source, target)

    monkeypatch.setattr(Path, "write_text", torn)
    monkeypatch.setattr(os, "replace", reject)
    with pytest.raises(OSError, match="No space left"):
        write_report(make_result(), tmp_path / "run", Report())
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left <= {"pareto.png"} - {name}


def test_report_settings_switch_files_off(tmp_path, make_result):
    assert write_report(make_result(), tmp_path, Report(plot=False, html=False)) == []
    assert list(tmp_path.iterdir()) == []
