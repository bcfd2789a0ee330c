"""Sweeps: what cannot run ends before the first point, in one line; each point says how many are left, and for how long."""

import json
import pickle

import pytest
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

import sparsefront.config.schema  # noqa: F401  (registers the schema and the resolvers)
from sparsefront.config import command_line
from sparsefront.config.command_line import check_sweep
from sparsefront.config.sweeps import (
    PROGRESS_FILE,
    Point,
    PointLoader,
    begin_sweep,
    check_values,
    count_points,
    headline,
    note_work,
    point_check,
    point_of_sweep,
    seconds_left,
)
from sparsefront.errors import InvalidSetting
from sparsefront.options import CONF

BASIC = {"_target_": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"}
OPTUNA = {"_target_": "hydra_plugins.hydra_optuna_sweeper.OptunaSweeper", "n_jobs": 1}


def multirun(*overrides: str, sweeper=BASIC, launcher=None):
    sources = [
        {"schema": "pkg", "path": "hydra.conf"},
        {"schema": "file", "path": str(CONF)},
        {"schema": "structured", "path": ""},
    ]
    hydra = {"sweeper": sweeper, "launcher": launcher or {}, "overrides": {"task": list(overrides)}}
    return OmegaConf.create({"hydra": hydra | {"runtime": {"config_sources": sources}}})


INTERVAL_IN_FILE = {"sweeper": BASIC | {"params": {"seed": "interval(0,9)"}}}
UNSUPPORTED = {
    "sparsity=interval(0.5,0.9)": ({}, r"sparsity=interval\(0\.5,0\.9\): needs hydra/sweeper=optuna .*a,b or"),
    "sparsity=tag(log,interval(0.5,0.9))": ({}, "sparsity=.*: needs hydra/sweeper=optuna"),
    "granularity=8": (INTERVAL_IN_FILE, "seed=.* needs hydra/sweeper"),
    "seed=1,2": ({"launcher": {"n_jobs": 0}}, "hydra.launcher.n_jobs=0: takes 1 or more, or -1"),
    "seed=1,2,3": ({"sweeper": OPTUNA | {"n_jobs": 0}}, "hydra.sweeper.n_jobs=0: takes 1 or more, or -1"),
    "seed=1,2 experiment=glob(nothing_*)": ({}, r"experiment=glob\(nothing_\*\): finds no option .*digits_gradual"),
    "pattern=glob(*,exclude=*)": ({}, "pattern=glob.*: finds no option .*n_m, .*tile_wise"),
    "seed=range(5,5)": ({}, "seed=range.*: is no value at all"),
}


@pytest.mark.parametrize(("overrides", "case"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_sweep_without_points_is_rejected(overrides, case):
    parts, message = case
    config = multirun(*overrides.split(), **parts)
    with pytest.raises(InvalidSetting, match=f"^{message}"):
        check_sweep(config)
    with pytest.raises(SystemExit, match=f"^{message}"):
        command_line.Sweep().on_multirun_start(config)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("pattern=n_m,tile_wise seed=range(3) sparsity=tag(a,choice(0.5,0.75)) measure.batch_size=[1,8]", {}),
        ("pattern=glob(*) experiment=glob(distribution_*) hydra/job_logging=glob(nothing)", {}),
        ("sparsity=interval(0.5,0.9)", {"sweeper": OPTUNA}),
        ("seed=1,2", {"launcher": {"n_jobs": -1}}),
        ("", {}),
    ],
)
def test_supported_sweep_passes(overrides, parts):
    check_sweep(multirun(*overrides.split(), **parts))


@pytest.fixture
def sweep():
    """Hydra's loader, and the configuration of a sweep."""
    with initialize_config_dir(str(CONF), version_base="1.3", job_name="run"):
        loader = GlobalHydra.instance().config_loader()
        yield loader, loader.load_configuration("config", ["hydra.job.chdir=false"], run_mode=RunMode.MULTIRUN)


@pytest.fixture
def check(sweep):
    """check(*overrides) -> the points that were looked at."""
    loader, config = sweep

    def checked(*overrides: str) -> list[list[str]]:
        looked_at, check_point = [], point_check(config, loader)

        def noted(point):
            looked_at.append(list(point))
            check_point(point)

        check_values(overrides, noted, loader)
        return looked_at

    return checked


@pytest.mark.parametrize(
    "overrides",
    [
        "pattern=n_m sparsity=0.5 pattern.m=8 experiment=digits_gradual",
        "~dataset.shift +hydra.job.env_set.X=1 recipe.lr=0.1 stages=[dense,prune] seed=3",
        "recovery=distill recovery.epochs=2 measure.samples=7 sparsity=0.5 sparsity=0.75",
    ],
)
def test_points_equal_those_of_hydra(sweep, overrides):
    loader, config = sweep
    loaded = [load(config, overrides.split()) for load in (PointLoader(loader, None), loader.load_sweep_config)]
    point, expected = (OmegaConf.to_container(one, resolve=False) for one in loaded)
    assert point == expected


def test_launchers_may_pickle_the_loader(sweep):
    """As joblib and submitit do, with Hydra's own loader around it."""
    loader, config = sweep
    again = pickle.loads(pickle.dumps(PointLoader(loader, 2)))
    assert again(config, ["sparsity=0.5"]).sparsity == 0.5


def test_uncomposable_point_is_one_line(sweep):
    loader, config = sweep
    with pytest.raises(InvalidSetting) as rejected:
        PointLoader(loader, 2)(config, ["seed=1", "sparsity=half"])
    message = "seed=1 sparsity=half: Error merging override sparsity=half: Value 'half' of type 'str' could not be"
    assert str(rejected.value).startswith(message) and "\n" not in str(rejected.value)


WRONG_VALUES = {
    "seed=1,2 sparsity=0.5,1.7": "sparsity=1.7: must be less than 1",
    "sparsity=1.7,0.5 seed=1,2": "sparsity=1.7: must be",
    "sparsity=interval(0.5,1.2)": "sparsity=1.2: must be",
    "recipe.lr=tag(log,interval(-1,1))": "recipe.lr=-1.0: must be greater than 0",
    "measure.samples=range(9,-9,-3)": "measure.samples=-6: must be",
    "granularity=8,0 pattern=tile_wise,block_wise": "granularity=0: must be",
    "recipe.lr=0.1,2000": "recipe.lr=2000: must be less than or equal to 1000",
    "stages=[dense],[prune,prune]": "stages=['prune', 'prune']: names prune more than once",
    "pattern=n_m pattern.m=4,-8": "pattern.m=-8: must be",
    "seed=1,2 recipe.lr=-1": "recipe.lr=-1: must be",
    "seed=1,2 recipe.lrr=1": "recipe.lrr=1: unknown key; did you mean lr? recipe takes batch_size, epochs, lr, ",
    "pattern=n_m,tile_wise pattern.n=1": "pattern.n=1: unknown key of pattern=tile_wise; choose pattern=n_m, which ",
}


@pytest.mark.parametrize(("overrides", "message"), WRONG_VALUES.items(), ids=WRONG_VALUES)
def test_value_out_of_range(check, overrides, message):
    with pytest.raises(InvalidSetting) as rejected:
        check(*overrides.split())
    assert str(rejected.value).startswith(message)


@pytest.mark.parametrize(
    "overrides",
    [
        "pattern=tile_wise,block_wise granularity=4x64,128",
        "pattern=block_wise,tile_wise granularity=4x64,128 seed=1,2",
        "pattern=n_m sparsity=0.5 pattern.m=4,5,8",
        "pattern=glob(*) ~recipe.ema experiment=glob(distribution_*)",
        "pattern=n_m,tile_wize",
        "seed=1",
    ],
)
def test_value_that_fits_some_point_passes(check, overrides):
    check(*overrides.split())


def test_one_point_per_value_is_checked(check):
    checked = check("sparsity=0.5,0.75", "pattern=n_m,tile_wise", "seed=range(10000)", "sparsity=0.5,0.75,0.9")
    assert sorted(checked) == [
        ["pattern=n_m", "seed=0", "sparsity=0.5"],
        ["pattern=n_m", "seed=0", "sparsity=0.75"],
        ["pattern=n_m", "seed=0", "sparsity=0.9"],
        ["pattern=n_m", "seed=9999", "sparsity=0.5"],
        ["pattern=tile_wise", "seed=0", "sparsity=0.5"],
    ]


@pytest.mark.parametrize(
    ("sweeper", "overrides", "points"),
    [
        (BASIC, "sparsity=0.5,0.75,0.9 pattern=n_m,tile_wise seed=1", 6),
        (BASIC, "seed=range(4) sparsity=choice(0.5,0.75) measure.batch_size=[1,8]", 8),
        (BASIC, "seed=1,2 seed=1,2,3", 3),
        (BASIC | {"params": {"seed": "0,1", "sparsity": "0.5,0.75"}}, "seed=1,2,3", 6),
        (OPTUNA | {"n_trials": 20}, "seed=1,2", 20),
        ({"_target_": "somebody.Sweeper"}, "seed=1,2", None),
        (BASIC, "experiment=glob(distribution_*) seed=1,2", None),
    ],
)
def test_points_are_counted_before_the_first(sweeper, overrides, points):
    assert count_points(multirun(*overrides.split(), sweeper=sweeper)) == points


def in_turn(*points: tuple[float, bool, float]) -> tuple[list[Point], float]:
    """(seconds, made, shared seconds), one after the other; and the time at their end."""
    ended, now = [], 1000.0
    for seconds, made, shared in points:
        ended.append(Point(now, seconds, made, shared))
        now += seconds
    return ended, now


def test_points_without_work_do_not_count():
    ended, now = in_turn((60, True, 0), (0.2, False, 0), (0.2, False, 0), (0.1, False, 0))
    assert seconds_left(3, ended, now=now) == pytest.approx(180)
    ended, now = in_turn((0.2, False, 0), (0.1, False, 0))
    assert seconds_left(3, ended, now=now) is None
    assert headline(5, ended, 2, now=now) == "point 3 of 5, time left: known when a first point is done"


def test_points_record_their_time(tmp_path, caplog):
    caplog.set_level("INFO")
    begin_sweep(tmp_path, 4)
    with point_of_sweep(tmp_path, 0):
        note_work()
        note_work(shared_seconds=0.0)
    with pytest.raises(ValueError), point_of_sweep(tmp_path, 1):
        note_work()
        raise ValueError
    with (tmp_path / PROGRESS_FILE).open("a") as file:
        file.write('{"started": 1')  # of a killed point
    with point_of_sweep(tmp_path, 2):
        pass
    ended = [json.loads(line)["made"] for line in (tmp_path / PROGRESS_FILE).read_text().splitlines()[1:3]]
    assert ended == [True, False]
    assert [message.split(",")[0] for message in caplog.messages] == [f"point {number} of 4" for number in (1, 2, 3)]
    note_work()  # outside of a sweep: nothing


@pytest.mark.parametrize(
    "content", [b"\xff\n", b"[" * 100_000, b"7\n[]\n", b'{"points": "many"}\n{"started": "now"}\n', None]
)
def test_damaged_progress_stops_no_point(tmp_path, caplog, content):
    caplog.set_level("INFO")
    file = tmp_path / PROGRESS_FILE
    file.mkdir() if content is None else file.write_bytes(content)
    with point_of_sweep(tmp_path, 0):
        pass
    assert caplog.messages == ["point 1; how many there will be, the sweeper decides"]
