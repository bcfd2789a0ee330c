"""The results file of a run: rows are on disk as soon as they are finished, and a killed run goes on where it was."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparsefront_kernels.bench.row import COLUMNS, Row, append_rows, as_text, read_rows

UNIT = ("dtype", "shape", "asked_sparsity", "gpu", "commit")


@dataclass(frozen=True)
class Results:
    """Rows of one GPU and commit, by what was asked for.

    Args:
        path: the file; None keeps rows in memory only.
        gpu, commit: of this run: rows of others stay in the file and count as not measured.
    """

    path: Path | None
    gpu: str
    commit: str
    _known: dict[tuple[str, ...], list[dict[str, str]]] = field(init=False, default_factory=dict)

    @classmethod
    def opened(cls, path: Path | None, *, gpu: str, commit: str, append: bool) -> "Results":
        """Begin a file, or go on with one.

        Args:
            append: whether rows that the file holds stay, and are not measured again.
        Raises:
            ValueError: the file to go on with has other columns.
        """
        results = cls(path, gpu, commit)
        if path is None or not path.exists():
            return results
        if not append:
            path.unlink()
            return results
        with path.open() as file:
            if file.readline().rstrip("\r\n") != ",".join(COLUMNS):
                raise ValueError(f"{path} has other columns than these: {', '.join(COLUMNS)}; write to another file")
        results._remember(read_rows(path))
        return results

    def add(self, rows: Sequence[Row]) -> None:
        """Write finished rows."""
        if self.path is not None:
            append_rows(self.path, rows)
        self._remember(map(as_text, rows))

    def known(self, dtype_name: str, shape: str, sparsity: float) -> list[dict[str, str]]:
        """The rows of this GPU and commit for a shape at an asked sparsity, as text."""
        return self._known.get((dtype_name, shape, f"{sparsity:.6g}", self.gpu, self.commit), [])

    def _remember(self, rows: Iterable[dict[str, str]]) -> None:
        for row in rows:
            self._known.setdefault(tuple(row[name] for name in UNIT), []).append(row)
