"""The pages of the studies show what their published rows say, and each cell is a point of a sweep."""

from types import SimpleNamespace

import pytest
import yaml
from quick_compositions import composition

from experiments.studies import claims, table
from experiments.studies.study import EXPERIMENTS, Study, points
from sparsefront.config.arguments import normalize_arguments
from sparsefront.config.settings import build_settings
from sparsefront.points import read_points

NAMES = sorted(file.parent.name for file in EXPERIMENTS.glob("*/study.yaml"))
GROUPS = ("pattern", "importance", "allocation", "schedule", "recovery", "recipe")
MEASURED = [name for name in NAMES if (EXPERIMENTS / name / "points.csv").exists()]


@pytest.mark.parametrize("name", MEASURED)
def test_page_shows_the_published_rows(name):
    of_study = Study.read(name)
    page = (EXPERIMENTS / name / "README.md").read_text()
    text = "\n".join(table.tables(of_study, table.tabulate_seeds(of_study)))
    assert text.strip() == page.partition(table.MARKS[0])[2].partition(table.MARKS[1])[0].strip()


@pytest.mark.parametrize("name", NAMES)
def test_points_are_those_of_a_sweep(name, tmp_path, monkeypatch):
    monkeypatch.setattr(Study, "points_file", tmp_path / "none.csv")
    of_study, file, seen = Study.read(name), tmp_path / "points.yaml", set()
    for network in of_study.networks:
        found = points(of_study, network)
        file.write_text(yaml.safe_dump(found))
        assert read_points(file) == found
        for cell in of_study.cells:  # columns differ in the sparsity alone, and of further networks one point is enough
            key = (cell.table, cell.row) if network == of_study.networks[0] else ()
            if cell.network == network and (network, *key) not in seen:
                seen.add((network, *key))
                config = composition(tuple(normalize_arguments([*cell.own, "kernel=none"])))
                for group in ("model", "dataset", *GROUPS):
                    build_settings(group, config[group])


@pytest.mark.parametrize(
    ("curve", "sparsity"),
    [
        ([(50, 0.0), (70, 2.0)], (60, "")),
        ([(50, 1.5), (70, 2.0)], (50, "below")),
        ([(50, 0.0), (70, 0.5)], (70, "above")),
    ],
)
def test_crossing_is_interpolated_between_levels(curve, sparsity):
    assert table._passed(curve, 1.0) == sparsity


def test_claims_are_those_of_the_rows():
    """At least twenty claims of all five works; each has its own answer, and a reason or command where it is not the same."""
    lines = claims.rows()
    text = claims.PAGE.read_text().partition(claims.MARKS[0])[2].partition(claims.MARKS[1])[0]
    assert text.strip() == "\n".join(claims.table())
    assert len({work for work, *_ in lines}) == 5 and len({line[:2] for line in lines}) == len(lines) >= 20
    assert all(why for *_, verdict, why in lines if verdict in (claims.NO, claims.MISSING))


def test_claim_within_noise_is_unclear(monkeypatch):
    """Of 1,000 rows at 90 %: ± 2.6 points between two networks."""

    def answer(kind, first, second):
        lines = {"first": first, "second": second}
        row = {"pattern": "n_m", "val_evaluated_samples": "1000", "metric_name": "accuracy"}
        monkeypatch.setattr(claims, "_row", lambda _, place: [row | {"val_masked": str(lines[place])}])
        return claims.KINDS[kind]({"network": "sst2", "rows": ["first", "second"]})

    assert answer("more", 0.9, 0.89) == ("+1.00 ± 2.69, sst2", claims.UNCLEAR)
    assert answer("more", 0.9, 0.85)[1] == claims.YES and answer("more", 0.85, 0.9)[1] == claims.NO
    assert answer("equal", 0.92, 0.9)[1] == claims.YES and answer("equal", 0.85, 0.9)[1] == claims.NO
    assert answer("equal", 0.89, 0.9)[1] == claims.UNCLEAR  # maybe more than a point less


def test_crossing_within_noise_is_unclear(monkeypatch):
    """Of 1,000 rows: crossings at 40 and 10 % may be one, where the losses between them differ by less than 2.9 points."""

    def answer(slow, fast):
        def level(amount, lost):
            values = {"sparsity_achieved": amount, "val_dense": 0.9, "val_masked": 0.9 - lost / 100}
            line = {"metric_name": "accuracy", "val_evaluated_samples": "1000"} | {k: str(v) for k, v in values.items()}
            return SimpleNamespace(first=line)

        curves = iter([[level(0.0, 0.0), level(0.4, slow)], [level(0.0, 0.0), level(0.4, fast)]])
        monkeypatch.setattr(claims, "_find_cells", lambda *_: next(curves))
        return claims.KINDS["crossing"]({"network": "sst2", "table": "Levels", "rows": ["slow", "fast"]})

    assert answer(1.0, 4.0) == ("40.0 % against 10.0 %, +1.88 ± 2.90 between, sst2", claims.UNCLEAR)
    assert answer(1.0, 20.0)[1] == claims.YES and answer(20.0, 1.0)[1] == claims.NO
