"""What is held alone is held once, by living processes; of another host signs of life count, of this one the process itself."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import wait_until

from sparsefront.artifacts import lease
from sparsefront.artifacts.lease import (
    GONE_S,
    LEASE_S,
    LeaseLost,
    do_alone,
    held_alone,
    hold_alone,
    hold_in,
    hold_shared,
    leases_of,
    require_all,
)


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


def test_alone_excludes_all_and_shared_only_alone(tmp_path):
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


def test_nothing_is_left_once_all_are_released(tmp_path):
    held = [hold_shared(tmp_path / "stage") for _ in range(3)]
    assert len(list(leases_of(tmp_path / "stage").iterdir())) == 3
    for one in held:
        one.release()
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_name_holds_nothing(tmp_path):
    folder = leases_of(tmp_path / "stage")
    folder.mkdir()
    for name in (".nfs000000000012", "alone.nfs0001", "notes.txt"):
        (folder / name).touch()
    age(SimpleNamespace(file=folder / "alone.nfs0001"), LEASE_S + 5)  # it counts as one of another host
    held = hold_alone(tmp_path / "stage")
    assert held and held.took_over == ("alone.nfs0001",)
    assert hold_shared(tmp_path / "stage") is None
    held.release()
    assert {path.name for path in folder.iterdir()} == {".nfs000000000012", "notes.txt"}


def test_a_folder_that_is_gone_is_not_made_where_that_is_not_asked_for(tmp_path):
    assert hold_in(tmp_path / "run" / ".running", "alone", create=False) is None
    assert not list(tmp_path.iterdir())


def test_of_another_host_signs_of_life_count(tmp_path, other_host):
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


def test_one_that_slept_learns_that_it_was_followed(tmp_path, other_host):
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


def test_what_a_process_works_on_is_asked_about_in_one_place(tmp_path):
    with held_alone(tmp_path / "one"), held_alone(tmp_path / "two") as two:
        require_all()
        two.file.unlink()
        with pytest.raises(LeaseLost, match="two.*another process took over"):
            require_all()
    require_all()


def test_a_living_process_of_this_host_needs_no_signs(tmp_path):
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


def test_a_process_that_ends_leaves_nothing(tmp_path):
    code = CHILD.replace("time.sleep(600)", "")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "stage")], check=True, stdout=subprocess.DEVNULL)
    assert not list(tmp_path.iterdir())


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


def test_a_number_that_was_given_again_is_another_process(tmp_path):
    tag = lease.process_tag()
    assert lease.lives(tag)
    assert lease.lives(tag.rpartition(".")[0] + ".1") is False
    assert lease.lives(f"elsewhere_0.{os.getpid()}.1") is None
    assert lease.lives(f"{lease.host()}.x.1") is None and lease.lives("nfs0001") is None


def test_a_forked_process_does_not_release_what_its_parent_holds(tmp_path):
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


def test_of_many_that_wait_for_a_lapsed_one_each_is_inside_once(tmp_path, other_host):
    """A dead host held it; all see at the same moment that it has lapsed."""
    (tmp_path / "count").write_text("0")
    other_host()
    dead = hold_alone(tmp_path / "stage")
    other_host()
    age(dead, 1000)
    command = [sys.executable, "-c", RACER, str(tmp_path)]
    racers = [subprocess.Popen([*command, host, "120", "1"]) for host in ("one", "two", "three", "four")]
    assert [racer.wait(600) for racer in racers] == [0] * 4
    assert (tmp_path / "count").read_text() == "4" and not dead.file.exists()


def test_waiting_is_told_once_and_ends_with_the_holder(tmp_path):
    told, holder = [], hold_alone(tmp_path / "stage")

    def tell() -> None:
        told.append(1)
        holder.release()

    with held_alone(tmp_path / "stage", tell):
        assert told == [1] and hold_alone(tmp_path / "stage") is None
    assert hold_alone(tmp_path / "stage")


def test_what_dead_processes_hold_is_swept_up(tmp_path, other_host):
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


def test_only_who_does_the_same_work_follows_one_that_may_sleep(tmp_path, other_host):
    other_host()
    theirs = hold_alone(tmp_path / "stage")
    other_host()
    age(theirs, LEASE_S + 5)
    assert hold_alone(tmp_path / "stage", lapses_s=GONE_S) is None and theirs.file.exists()
    theirs.require()
    age(theirs, GONE_S + 5)
    swept = hold_alone(tmp_path / "stage", lapses_s=GONE_S)
    assert swept.took_over == (theirs.file.name,)


def test_one_that_reads_and_sleeps_is_left_alone_by_other_readers(tmp_path, other_host):
    other_host()
    theirs = hold_shared(tmp_path / "stage")
    other_host()
    age(theirs, LEASE_S + 5)
    ours = hold_shared(tmp_path / "stage")
    assert ours and theirs.file.exists()


def test_what_a_reader_held_is_held_again_when_it_wakes_unless_another_holds_it_alone(tmp_path, other_host):
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


def test_what_is_done_alone_is_done_anew_by_one_that_slept(tmp_path):
    path, done = tmp_path / "rows", []

    def write(held: lease.Lease) -> str:
        done.append(held.file)
        if len(done) == 1:
            held.file.unlink()  # another one held it meanwhile
        held.require()
        return "written"

    assert do_alone(path, write) == "written" and len(done) == 2
    assert not list(tmp_path.iterdir())


def test_the_loss_of_something_else_is_not_tried_again(tmp_path):
    def fail(held: lease.Lease) -> None:
        raise LeaseLost("of the run")

    with pytest.raises(LeaseLost, match="of the run"):
        do_alone(tmp_path / "rows", fail)
