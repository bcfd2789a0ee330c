"""What still differs between results of one plot is reported, and what agrees is not."""

import pytest

from sparsefront.results.differences import differences

HASH, OTHER = "a" * 64, "b" * 64
COMMIT = "0123456789" * 4
ALIKE = {
    "repeats": 3,
    "samples_per_repeat": 30,
    "recipe": "vit_small_digits",
    "recipe_parameters": {"lr": 0.001, "epochs": 10},
    "dense_weights_sha256": HASH,
    "commit": COMMIT,
}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"repeats": 5}, "repeats 3, 5"),
        ({"samples_per_repeat": 100}, "samples per repeat 30, 100"),
        ({"autotune_seconds": 60.0}, "seconds of search unknown, 60.0"),
        ({"recipe": "default"}, "recipe vit_small_digits, default"),
        ({"recipe_parameters": {"lr": 0.003, "epochs": 10}}, "recipe.lr 0.001, 0.003"),
        ({"trainer_parameters": {"limit_batches": 2}}, "trainer.limit_batches unknown, 2"),
        ({"dense_weights_sha256": OTHER}, "2 different dense networks"),
        ({"dense_weights_sha256": OTHER, "seed": 4}, "2 different dense networks (seeds 3, 4)"),
        ({"commit": "f" * 40 + "-dirty"}, "commit 012345678, fffffffff-dirty"),
        ({"torch_version": "2.14.0"}, "torch 2.15.0, 2.14.0"),
        ({"driver": "580.65"}, "driver unknown, 580.65"),
    ],
)
def test_each_difference_is_told_in_one_line(make_result, change, told):
    lines = differences([make_result(**ALIKE), make_result(**ALIKE | change)])
    assert lines[-1] == f"differs between these runs: {told}"


def test_what_a_dense_network_has_no_setting_for_is_no_difference(make_result):
    """Its record holds no recipe parameters of what comes after pruning; of a checkpoint as it is, `epochs` alone."""
    dense = make_result(
        **ALIKE | {"pattern": "dense", "masked": None, "sparse": None, "recipe_parameters": {"epochs": 10}}
    )
    assert differences([make_result(**ALIKE), dense]) == []
    other = make_result(**ALIKE | {"recipe_parameters": {"lr": 0.003, "epochs": 10}})
    assert differences([make_result(**ALIKE), dense, other]) == ["differs between these runs: recipe.lr 0.001, 0.003"]


def test_two_windows_at_one_sparsity_are_told_and_those_of_a_sweep_are_not(make_result):
    half = ALIKE | {"pattern": "n_m", "sparsity_target": 0.5}
    results = [make_result(**half, n_of_m="2:4"), make_result(**ALIKE | {"pattern": "n_m"}, n_of_m="1:4")]
    assert differences(results) == []
    (line,) = differences([*results, make_result(**half, n_of_m="4:8")])
    assert line.endswith("n:m of n_m at sparsity 0.5 2:4 and 4:8")


def test_equal_weights_under_different_seeds_are_named(make_result):
    """One run may pose as several seeds; so may one that draws nothing."""
    pruned = ALIKE | {"pattern": "n_m", "sparsity_target": 0.5}
    runs = [make_result(**pruned, weights_sha256=HASH, seed=3, recovery_seed=seed) for seed in (3, 4, 5)]
    told = "equal weights under different seeds (n_m 0.5: 3, 3/4, 3/5): one network, not 3"
    assert told in differences(runs)
    others = [make_result(**pruned, weights_sha256=f"{seed}" * 64, seed=3, recovery_seed=seed) for seed in (3, 4)]
    assert not any("equal weights" in line for line in differences(others))
    assert not any("equal weights" in line for line in differences([runs[0], runs[0]]))
