"""What is printed at the end of a run and of a sweep: paths can be copied from one line."""

from sparsefront.results.comparable import split_comparable
from sparsefront.results.tables import Failure, print_failures, print_group, print_results, print_run


def test_lines_of_a_comparison_end_in_no_blanks_and_are_whole_in_a_pipe(mixed, capsys, monkeypatch):
    """Titles and verdicts were filled up with blanks to the width of the widest kernel's name, and folded at that of a table."""
    monkeypatch.setenv("COLUMNS", "40")
    kernels = {0: "gathered", 1: "+".join(["blocked_sm90_feature_major"] * 4)}
    (group,) = split_comparable(run.with_values({"latency_kernel": kernels[run.identity.seed]}) for run in mixed(20))
    verdict = f"n_m picked before {'tile_wise, ' * 30}uniform"
    print_group(group, [verdict])
    lines = capsys.readouterr().out.splitlines()
    assert verdict in lines and max(map(len, lines)) > 200
    assert [line for line in lines if line != line.rstrip()] == []
    assert any(line.startswith("- at ≤ 0.5") and "held out" in line for line in lines)
    assert all(line.endswith("gathered") for line in lines if " gathered" in line), (
        "a long name is the last in its line"
    )


def test_names_and_messages_control_no_terminal(capsys, make_result):
    """A stranger's folder may hold escape sequences in any name."""
    hostile = make_result().with_values({"pattern": "n_m\x1b[2J", "model": "a\rb\u202e", "run_id": "x\x07"})
    print_results([hostile])
    print_run(hostile, [])
    print_failures([Failure("a\x1b[1A", ["pattern=\x9b31m"], "first line\nsecond\x1b]0;t\x07")])
    shown = capsys.readouterr().out
    assert not set(shown) & set("\x1b\r\x07\u202e\x9b")
    assert r"n_m\x1b[2J" in shown and r"pattern=\x9b31m" in shown and "\n" + "     first line\nsecond" in shown
