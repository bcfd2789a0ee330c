"""What is held alone is held once, by living processes; of another host signs of life count, of this one the process itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

from sparsefront.artifacts import lease
from sparsefront.artifacts.lease import GONE_S, LEASE_S, LeaseLost, do_alone, hold_alone, hold_shared, leases_of


@pytest.fixture
def other_host(monkeypatch):
    """other_host() -> from here on this process is one of another machine; called again, it is itself."""
    own, hosts = lease.host(), iter(["elsewhere_0", None] * 9)

    def move() -> None:
        name = next(hosts) or own
        monkeypatch.setattr(lease, "host", lambda: name)

    return move


def age(held: lease.Lease, seconds: float) -> None:
    """As if its last sign of life was so long ago."""
    os.utime(held.file, (time.time() - seconds,) * 2)


def test_alone_excludes_everyone(tmp_path):
    path = tmp_path / "stage"
    first = hold_shared(path)
    second = hold_shared(path)
    assert first and second and hold_alone(path) is None
    first.release()
    first.release()
    assert hold_alone(path) is None
    second.release()
    alone = hold_alone(path)
    assert alone and hold_shared(path) is None and hold_alone(path) is None
    assert hold_alone(tmp_path / "another")
    del alone
    assert hold_alone(path), "what is forgotten is held no longer"


def test_signs_of_another_host_count(tmp_path, other_host):
    other_host()
    theirs = hold_alone(tmp_path / "stage")
    other_host()
    assert hold_alone(tmp_path / "stage") is None, "it was renewed just now"
    age(theirs, LEASE_S - 5)
    assert hold_shared(tmp_path / "stage") is None, "the network may have been away for a while"
    age(theirs, LEASE_S + 5)
    ours = hold_alone(tmp_path / "stage")
    assert ours.took_over == (theirs.file.name,)
    assert hold_alone(tmp_path / "stage") is None, "never given to two"


def test_sleeper_learns_that_it_was_followed(tmp_path, other_host):
    other_host()
    theirs = hold_alone(tmp_path / "stage")
    theirs.require()
    age(theirs, LEASE_S + 5)
    other_host()
    ours = hold_alone(tmp_path / "stage")
    other_host()
    with pytest.raises(LeaseLost, match="another process took over"):
        theirs.require()
    theirs.release()
    assert ours.file.exists(), "what it releases is its own"


def test_living_process_needs_no_signs(tmp_path):
    held = hold_alone(tmp_path / "stage")
    age(held, 100 * LEASE_S)
    assert hold_alone(tmp_path / "stage") is None, "a long computation may keep it from beating"


def test_the_thread_renews_what_is_held(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "BEAT_S", 0.02)
    monkeypatch.setattr(lease, "_heart", None)
    held = hold_alone(tmp_path / "stage")
    age(held, 1000)
    wait_until(lambda: time.time() - held.file.stat().st_mtime < 500)


CHILD = """
import os, sys, time
from pathlib import Path
from sparsefront.artifacts.lease import hold_alone
held = hold_alone(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("waited_for", [True, False], ids=["gone", "zombie"])
def test_a_killed_process_holds_nothing(tmp_path, waited_for):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "stage")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n" and hold_alone(tmp_path / "stage") is None
    os.kill(process.pid, signal.SIGKILL)
    if waited_for:
        process.wait(600)
    held = wait_until(lambda: hold_alone(tmp_path / "stage"))
    assert len(held.took_over) == 1
    process.wait(600)


def test_reused_number_is_another_process(tmp_path):
    tag = lease.process_tag()
    assert lease.lives(tag)
    assert lease.lives(tag.rpartition(".")[0] + ".1") is False
    assert lease.lives(f"elsewhere_0.{os.getpid()}.1") is None
    assert lease.lives(f"{lease.host()}.x.1") is None and lease.lives("nfs0001") is None


def test_fork_does_not_release_its_parents(tmp_path):
    held = hold_alone(tmp_path / "stage")
    if (child := os.fork()) == 0:
        held.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert held.file.exists()


RACER = """
import os, sys
from pathlib import Path
from sparsefront.artifacts import lease; from sparsefront.artifacts import lease as owner
root, name = Path(sys.argv[1]), sys.argv[2]
owner.host = lambda: name
lease.LEASE_S = float(sys.argv[3])
inside, count = root / "inside", root / "count"
for _ in range(int(sys.argv[4])):
    with lease.held_alone(root / "stage"):
        os.mkdir(inside)  # fails where another one is inside
        count.write_text(str(int(count.read_text()) + 1))
        os.rmdir(inside)
"""


@pytest.mark.parametrize("hosts", [["here"] * 4, ["one", "two", "three", "four"]], ids=["one host", "four hosts"])
def test_many_processes_are_never_inside_together(tmp_path, hosts):
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen([*command, host, "120", "20"]) for host in hosts]
    assert [racer.wait(600) for racer in racers] == [0] * 4
    assert (tmp_path / "count").read_text() == "80"


def test_dead_processes_are_swept_up(tmp_path, other_host):
    other_host()
    theirs = hold_shared(tmp_path / "stage")
    other_host()
    ours = hold_shared(tmp_path / "stage")
    age(theirs, GONE_S + 5)
    lease.remove_dead(leases_of(tmp_path / "stage"))
    assert theirs.file.exists(), "others hold it: no hurry"
    ours.release()
    age(theirs, GONE_S - 60)
    lease.remove_dead(leases_of(tmp_path / "stage"))
    assert theirs.file.exists(), "its process may only sleep"
    age(theirs, GONE_S + 5)
    lease.remove_dead(leases_of(tmp_path / "stage"))
    assert not list(Path(tmp_path).iterdir())


def test_reader_that_wakes_holds_again(tmp_path, other_host):
    other_host()
    theirs = hold_shared(tmp_path / "stage")
    age(theirs, GONE_S + 5)
    other_host()
    hold_alone(tmp_path / "stage", lapses_s=GONE_S).release()
    assert not list(tmp_path.iterdir())
    other_host()
    theirs.require()
    other_host()
    assert hold_alone(tmp_path / "stage") is None, "it is read again"
    theirs.file.unlink()
    ours = hold_alone(tmp_path / "stage")
    with pytest.raises(LeaseLost):
        theirs.require()
    ours.release()
    theirs.require()
    theirs.release()
    assert not list(tmp_path.iterdir())


def test_sleeper_does_it_anew(tmp_path):
    path, done = tmp_path / "rows", []

    def write(held: lease.Lease) -> str:
        done.append(held.file)
        if len(done) == 1:
            held.file.unlink()  # another one held it meanwhile
        held.require()
        return "written"

    assert do_alone(path, write) == "written" and len(done) == 2
    assert not list(tmp_path.iterdir())
