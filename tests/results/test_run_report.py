"""What one run writes for its reader: whole or not at all, small, and readable without a network."""

import errno
import os
from pathlib import Path

import pytest

from sparsefront.results.run_report import Report, write_report


@pytest.mark.parametrize("name", ["report.html", "pareto.png"])
def test_full_disk_leaves_no_half_page(tmp_path, make_result, monkeypatch, name):
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
