"""CUDA sources as libraries: what the compiler makes of each, when one is built, and what is said where one cannot be."""

import fcntl
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from subprocess import CompletedProcess
from threading import Barrier
from types import SimpleNamespace

import pytest
import torch
from forked_builder import forking_builder
from program_server import Program, ProgramServer
from sparsefront_kernels import build, cuda_library


@pytest.fixture
def needs_tools():
    if reason := cuda_library._missing_tool():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def forking() -> Iterator[SimpleNamespace]:
    with forking_builder() as in_place_of_subprocess:
        yield in_place_of_subprocess


@pytest.fixture
def forked_builds(forking, monkeypatch) -> None:
    """Builds of this test need not import torch again."""
    monkeypatch.setattr(cuda_library, "subprocess", forking)


@pytest.fixture(scope="module")
def compiler_logs(tmp_path_factory, forking):
    """Source -> what the compiler said of it. All are built here, where they have not been built before."""
    if reason := cuda_library._missing_tool():
        pytest.skip(reason)
    alone = (tmp_path_factory.getbasetemp().parent / "compiler.lock").open("w")
    with alone, ThreadPoolExecutor(os.cpu_count()) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_library, "subprocess", forking)
        fcntl.flock(
            alone, fcntl.LOCK_EX
        )  # pytest-xdist's workers, which have folders side by side, do not compile the same
        libraries = dict(zip(cuda_library.SOURCES, pool.map(cuda_library.build, cuda_library.SOURCES)))
    return {name: (library.parent / cuda_library.LOG).read_text() for name, library in libraries.items()}


@pytest.fixture
def empty_cache(tmp_path, monkeypatch):
    """No library is built; sources are what a test writes there with `source`."""
    monkeypatch.setenv("SPARSEFRONT_KERNELS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cuda_library, "_failures", {})
    cuda_library._warn_once.cache_clear()
    return tmp_path / "cache"


@pytest.fixture
def source(tmp_path, monkeypatch):
    """(name, text) -> a source of that name is known."""
    known: dict = {}
    for module in (cuda_library, build):
        monkeypatch.setattr(module, "SOURCES", known)

    def write(name: str, text: str) -> None:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.cu").write_text(text)
        known[name] = folder / f"{name}.cu"

    return write


ANSWER = 'extern "C" int answer() {{ return {}; }}'


class TestOurSources:
    """One compilation of each serves all of these."""

    @pytest.mark.parametrize("name", cuda_library.SOURCES)
    def test_is_compiled_for_hopper_alone(self, name, compiler_logs):
        targets = re.findall(r"Compiling entry function .* for '(\w+)'", compiler_logs[name])
        assert set(targets) == {"sm_90a"}

    @pytest.mark.parametrize("name", cuda_library.SOURCES)
    def test_no_product_waits_for_another(self, name, compiler_logs):
        """The compiler warns where it makes tensor-core products wait for one another, or moves no registers to others."""
        assert "serialized" not in compiler_logs[name]
        assert not re.search("setmaxnreg.*ignored", compiler_logs[name])

    @pytest.mark.parametrize("name", cuda_library.SOURCES)
    def test_spills_are_few(self, name, compiler_logs):
        """Registers that overflow into memory are loaded again inside the main loop."""
        spilled = [int(stores) for stores in re.findall(r"(\d+) bytes spill stores", compiler_logs[name])]
        assert spilled and max(spilled) <= MOST_SPILLED.get(name, 0)

    @pytest.mark.parametrize("name", cuda_library.SOURCES)
    def test_opens(self, name, compiler_logs):
        library = cuda_library.load(name)
        assert getattr(library, f"sparsefront_{name}")  # what Python calls, by its own name


# Bytes of a thread, at most. gathered_sm90_cluster: where blocks of a cluster add up, after the main loop. gathered_indexed: an
# address, before it.
MOST_SPILLED = {
    "gathered_sm90_cluster": 440,
    "gathered_indexed": 8,
    "gathered_small_m": 80,
    "n_m_small_m": 48,
}


@pytest.mark.usefixtures("needs_tools")
class TestBuilding:
    def test_once_for_each_source(self, empty_cache, source, monkeypatch):
        source("trivial", ANSWER.format(42))
        assert cuda_library.built("trivial") is None and cuda_library.unavailable_reason("trivial") is None
        environment = dict(os.environ)
        library = cuda_library.build("trivial")
        assert dict(os.environ) == environment
        written = library.stat().st_mtime_ns
        assert cuda_library.build("trivial").stat().st_mtime_ns == written
        assert cuda_library.load.__wrapped__("trivial").answer() == 42
        with monkeypatch.context() as without:  # built ahead of time, it serves where there is no compiler
            without.setattr(cuda_library, "compiler", lambda: None)
            assert cuda_library.unavailable_reason("trivial") is None and cuda_library.build("trivial") == library
        source("trivial", ANSWER.format(43))
        assert cuda_library.build("trivial") != library
        assert [path.name for path in empty_cache.iterdir() if path.name.startswith("building")] == []

    def test_a_shared_header_is_part_of_every_library(self, forked_builds, empty_cache, source, monkeypatch, tmp_path):
        shared = tmp_path / "shared"
        shared.mkdir()
        (shared / "number.cuh").write_text("constexpr int NUMBER = 1;")
        monkeypatch.setattr(cuda_library, "SHARED", shared)
        source("trivial", '#include "../shared/number.cuh"\n' + ANSWER.format("NUMBER"))
        before = cuda_library.build("trivial")
        (shared / "number.cuh").write_text("constexpr int NUMBER = 2;")
        assert cuda_library.built("trivial") is None
        assert cuda_library.build("trivial") != before
        assert cuda_library.load.__wrapped__("trivial").answer() == 2

    def test_several_at_once(self, empty_cache, source, monkeypatch):
        """All that they share is the cache's folder: the second finds the library of the first where it would put its own."""
        source("trivial", ANSWER.format(7))
        both_are_done = Barrier(2)

        def builder(name, folder):
            (folder / f"{name}.so").write_text("a library")
            both_are_done.wait(timeout=60)
            return CompletedProcess([], 0, "what the compiler said")

        monkeypatch.setattr(cuda_library, "_run_builder", builder)
        with ThreadPoolExecutor(2) as pool:
            paths = set(pool.map(cuda_library.build, ["trivial"] * 2))
        assert paths == {cuda_library.built("trivial")}
        assert [path.name for path in empty_cache.iterdir()] == [cuda_library.built("trivial").parent.name]

    def test_a_killed_build_blocks_no_other(self, empty_cache, source, programs):
        source("slow", "#include <cooperative_groups.h>\n" + ANSWER.format(5))
        process = _build_elsewhere("slow", programs)
        deadline = time.monotonic() + 60
        while not list(empty_cache.glob("building-slow-*/library/lock")) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert list(empty_cache.glob("building-slow-*/library/lock")), "the builder never locked its folder"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert cuda_library.built("slow") is None
        assert cuda_library.load.__wrapped__("slow").answer() == 5

    def test_compiler_messages_reach_the_user(self, forked_builds, empty_cache, source, monkeypatch):
        source("broken", "this is no C++")
        with pytest.raises(
            cuda_library.BuildFailed, match="(?s)^broken: its build failed: [^\n]*broken.cu.*error: .*nvcc"
        ):
            cuda_library.build("broken")
        assert re.search("its build failed: .*broken.cu.*error: ", cuda_library.unavailable_reason("broken"))
        monkeypatch.setattr(cuda_library, "_run_builder", lambda *_: pytest.fail("a second attempt would fail alike"))
        with pytest.raises(cuda_library.BuildFailed, match="its build failed"):
            cuda_library.build("broken")

    def test_a_cache_that_cannot_be_written_is_named(self, empty_cache, source):
        source("trivial", ANSWER.format(1))
        empty_cache.write_text("a file, no folder")
        with pytest.raises(cuda_library.BuildFailed, match="trivial: its folder in .SPARSEFRONT_KERNELS_CACHE"):
            cuda_library.build("trivial")

    def test_command_line(self, forked_builds, empty_cache, source, capsys):
        source("one", ANSWER.format(1))
        source("two", ANSWER.format(2))
        assert build.main() == 0
        lines = capsys.readouterr().out.splitlines()
        assert [re.sub(r"-.*/", "/", line.removeprefix(f"{empty_cache}/")).split()[0] for line in lines] == [
            "one/one.so",
            "two/two.so",
        ]
        assert all(re.search(r"\d s$", line) for line in lines)
        source("two", "neither is this")
        assert build.main() == 1
        said = capsys.readouterr()
        assert "one.so" in said.out and said.err.startswith("two: its build failed")


class TestMissingTools:
    @pytest.mark.parametrize(("tool", "named"), [("compiler", "CUDA's compiler nvcc"), ("ninja", "pip install ninja")])
    def test_is_named_once_in_the_log_and_always_to_who_asks(
        self, tool, named, empty_cache, source, monkeypatch, caplog
    ):
        if torch.version.cuda is None:
            pytest.skip("this PyTorch is one without CUDA")
        source("trivial", ANSWER.format(1))
        if tool == "ninja":
            monkeypatch.setattr(cuda_library, "compiler", lambda: sys.executable)
        monkeypatch.setattr(cuda_library, tool, lambda: None)
        for _ in range(2):
            assert named in cuda_library.unavailable_reason("trivial")
        with pytest.raises(cuda_library.BuildFailed, match=f"trivial: needs .*{named.split()[-1]}"):
            cuda_library.build("trivial")
        assert [record.levelname for record in caplog.records if named in record.getMessage()] == ["WARNING"]

    def test_ninja_beside_this_python_is_found(self, tmp_path, monkeypatch):
        (tmp_path / "ninja").write_text("#!/bin/sh\n")
        (tmp_path / "ninja").chmod(0o755)
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
        assert cuda_library.ninja() == str(tmp_path / "ninja")

    def test_a_pytorch_without_cuda_is_named(self, empty_cache, source, monkeypatch):
        source("trivial", ANSWER.format(1))
        monkeypatch.setattr(torch.version, "cuda", None)
        assert "without CUDA" in cuda_library.unavailable_reason("trivial")


def _build_elsewhere(name: str, programs: ProgramServer) -> Program:
    """Another process, in a group of its own, builds a source and prints the library's path."""
    code = (
        "from pathlib import Path; from sparsefront_kernels import cuda_library\n"
        f"cuda_library.SOURCES = {{{name!r}: Path({str(cuda_library.SOURCES[name])!r})}}\n"
        f"print(cuda_library.build({name!r}))"
    )
    return programs.start(["-c", code])
