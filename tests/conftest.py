"""Runs of the whole program inside the test process."""

import os

# As in run.py, before torch is imported: threads that spin while they wait slow down whatever runs beside the tests.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores

import atexit
import functools
import gc
import importlib
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import HealthCheck, settings
from program_server import ProgramServer
from quick_compositions import composed_in, merge_equal_choices_once, parse_each_content_once
from quick_settings import QUICK, time_little
from rank_server import RankServer

# Triton reads this when it is imported: without a GPU its kernels run in the interpreter.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("WANDB_MODE", "offline")

# Tests check what kernels compute, and none of them waits for the timings of another process.
if torch.cuda.is_available():
    LOCKS = Path(tempfile.gettempdir()) / "sparsefront_tests" / str(os.getpid())
    LOCKS.mkdir(parents=True, exist_ok=True)
    os.environ["SPARSEFRONT_GPU_LOCKS"] = str(LOCKS)

# A shell that runs this in the background ignores SIGINT for it, and so for every child; Python would keep that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
    signal.signal(number, handler)
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})

# On a busy machine examples take long, which says nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

ROOT = Path(__file__).resolve().parent.parent
SEED = "SPARSEFRONT_TEST_SEED"
os.environ.setdefault(SEED, str(random.SystemRandom().randrange(2**31)))  # processes that share the tests share it


parse_each_content_once()
merge_equal_choices_once()

# What is imported and collected stays until the end: looking through it for garbage, again and again, takes seconds.
gc.disable()


def pytest_collection_finish() -> None:
    """From now on only what tests make is looked through."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)
    gc.enable()


@atexit.register
def without_last_words() -> None:
    """Triton's bindings count, when Python ends, what its interpreter still holds: pages about leaks that are none."""
    sys.stderr.flush()
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno())


def pytest_report_header() -> str:
    return f"random inputs of this run come back with {SEED}={os.environ[SEED]}"


SEARCHES = (
    ("measure.end_to_end", "known_searches"),
    ("inference.autotune", "timed_layers"),
    ("inference.fusion.product_choice", "known_products"),
    ("inference.whole_network", "known_swaps"),
)


@pytest.fixture(autouse=True)
def independent(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on another one, and few wait for a disk.

    What it draws without a seed of its own is new in every run, and the same again under the run's seed. No test but those
    of the store sees what a power failure leaves. None uses what another one searched, in this process or, on a GPU, in an
    earlier one.
    """
    torch.manual_seed(zlib.crc32(f"{os.environ[SEED]} {request.node.nodeid}".encode()))
    if request.path.parent.name != "artifacts":
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for module, name in SEARCHES:
        if (cache := getattr(sys.modules.get(f"sparsefront.{module}"), name, None)) is not None:
            monkeypatch.setattr(cache, "_here", {})
            if request.node.get_closest_marker("gpu"):
                folder = request.getfixturevalue("tmp_path") / "searches" / name
                monkeypatch.setattr(cache, "_file", lambda key, device, folder=folder: folder / str(hash(key)))


# On a GPU, where most tests of kernels take a second.
LONG_KERNEL_TESTS = {"test_sanitizer", "test_delays", "test_bench", "test_every_launch_is_right_and_repeats"}
LONG_KERNEL_TESTS |= {"test_code_for_gpus_before_hopper"}


@pytest.hookimpl(trylast=True)  # of the tests that are left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.option.markexpr == "gpu" and hasattr(config, "workerinput"):
        items[:] = begin_with_long_tests(items, config.workerinput["workercount"])
    for item in items if not torch.cuda.is_available() else ():
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device; run pytest -m gpu on a GPU machine"))


def begin_with_long_tests(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """An order in which each worker of `--dist worksteal`, which gets an equal part of the tests, begins with its share of the
    long ones.
    """

    def is_long(item: pytest.Item) -> bool:
        return item.path.parent.name != "kernels" or bool({item.path.stem, item.originalname} & LONG_KERNEL_TESTS)

    long, short = ([item for item in items if is_long(item) == value] for value in (True, False))
    together = [item for item in long if item.path.stem == "test_delays"]  # they begin with the first of them
    others = [item for item in long if item not in together]
    order: list[pytest.Item] = []
    for part in range(workers):
        own = together * (part == 0) + others[part::workers]
        most = (len(items) - len(order)) // (workers - part)
        order += own + [short.pop(0) for _ in range(min(len(short), most - len(own)))]
    return order + short


@pytest.fixture
def new_process() -> Callable[[], None]:
    """new_process() forgets the sources that were read: a process never looks at them again."""
    from sparsefront.artifacts import code_digest

    def forget() -> None:
        for name, cached in vars(code_digest).items():
            if hasattr(cached, "cache_clear") and name != "_parse":  # see `sources_parsed_once`
                cached.cache_clear()
        importlib.invalidate_caches()

    yield forget
    forget()


@pytest.fixture
def edit(monkeypatch: pytest.MonkeyPatch, new_process: Callable) -> Callable:
    """edit(file, old, new): from now on the file reads so, in what is as good as a new process."""

    def change(file: Path, old: str, new: str) -> None:
        content = file.read_bytes()
        edited = content.replace(old.encode(), new.encode(), 1)
        assert edited != content
        read = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda self: edited if self == file else read(self))
        new_process()

    return change


@pytest.fixture(scope="session", autouse=True)
def sources_parsed_once() -> Iterator[None]:
    """A new process reads every source again; what the same bytes mean stays the same, and takes a third of a second."""
    from sparsefront.artifacts import code_digest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code_digest, "_parse", functools.cache(code_digest._parse))
        yield


@pytest.fixture(scope="session", autouse=True)
def no_signs_of_life() -> Iterator[None]:
    """Of leases by this process, which a test makes as old as it says: a busy one would renew them in its midst."""
    from sparsefront.artifacts import lease

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "BEAT_S", 1e6)
        yield


@pytest.fixture(scope="session", autouse=True)
def digits_grouped_once() -> Iterator[None]:
    """Every part of a run asks which of the 1797 images are alike."""
    from sparsefront.data import digits

    linked = functools.cache(digits.link)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digits, "link", lambda keys: linked(tuple(keys)).copy())
        yield


@pytest.fixture(scope="session", autouse=True)
def equal_blocks_captured_once() -> Iterator[None]:
    from shared_captures import capture_equal_blocks_once

    with pytest.MonkeyPatch.context() as patch:
        capture_equal_blocks_once(patch)
        yield


@pytest.fixture
def own_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_process: Callable) -> Callable:
    """own_modules({file: content}) -> the folder of a user's modules, on the path of imports, before a new process."""
    folder = tmp_path / "own"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # its times are too coarse for edits within a second

    def write(files: dict[str, str]) -> Path:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        new_process()
        return folder

    yield write
    write({})


@pytest.fixture(scope="session")
def programs() -> Iterator[ProgramServer]:
    """Starts programs in processes that need not import torch again."""
    server = ProgramServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def rank_server() -> RankServer:
    """Starts processes that need not import torch again, for functions that are importable by name."""
    return RankServer()


@pytest.fixture
def served_ranks(rank_server: RankServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that this process starts need not import torch again."""
    from sparsefront.training import ranks

    monkeypatch.setattr(ranks, "STARTED_BY", rank_server)


@pytest.fixture(scope="session")
def bodies() -> Iterator[ModuleType]:
    """What ranks run: `process_bodies`, on the path of this process and so of those that it starts."""
    sys.path.insert(0, str(Path(__file__).parent))
    import process_bodies

    yield process_bodies
    sys.path.remove(str(Path(__file__).parent))


@pytest.fixture
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, runs in this process time everything that they try, but by few calls."""
    if not torch.cuda.is_available():
        time_little(monkeypatch)


@pytest.fixture
def composed(tmp_path: Path, few_timings: None) -> Callable:
    """compose(*overrides) -> the configuration of one run, with Hydra's runtime set as `run.py` would have it."""
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig
    from omegaconf import open_dict

    runs = 0

    def make(*overrides: str):
        nonlocal runs
        runs += 1
        directory = tmp_path / "results" / str(runs)
        directory.mkdir(parents=True)
        config = composed_in(tmp_path / "results", tmp_path / "cache", overrides)
        with open_dict(config.hydra):
            config.hydra.runtime.output_dir = str(directory)
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        return config

    yield make
    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None


@pytest.fixture
def full_run(composed: Callable) -> Callable:
    """full_run(*overrides) -> the row of a tiny run, with pages, fused graphs and every execution of the network."""
    from hydra.core.hydra_config import HydraConfig

    from sparsefront.pipeline import run_experiment
    from sparsefront.results.record import Result

    def make(*overrides: str) -> Result:
        run_experiment(composed("debug=tiny", *overrides))
        return Result.from_json((Path(HydraConfig.get().runtime.output_dir) / "row.json").read_text())

    return make


@pytest.fixture
def run(full_run: Callable) -> Callable:
    """run(*overrides) -> the row of a tiny run without pages and fused graphs."""
    return functools.partial(full_run, *QUICK)
