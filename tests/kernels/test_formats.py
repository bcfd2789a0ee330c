"""Storage formats: exact round trips, honest sizes, broken content refused."""

import json

import pytest
import torch
from sparsefront_kernels import FORMATS


def bits(matrix: torch.Tensor) -> torch.Tensor:
    return matrix.contiguous().view(torch.int16 if matrix.element_size() == 2 else torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_round_trip_is_exact(case, dtype, device):
    weight, mask = (part.to(device) for part in case.dense())
    weight = weight.to(dtype)
    stored = FORMATS[case.family].from_dense(weight, mask, **case.parameters)
    expected = weight.clone()
    expected[~mask] = 0.0
    assert stored.shape == case.shape
    assert (stored.dtype, stored.device.type) == (dtype, device.type)
    assert torch.equal(bits(stored.to_dense()), bits(expected))


def test_non_contiguous_weight_gives_the_same_format(case):
    weight, mask = case.dense()
    sideways = FORMATS[case.family].from_dense(
        weight.t().contiguous().t(), mask.t().contiguous().t(), **case.parameters
    )
    for name, part in case.build().tensors().items():
        assert torch.equal(sideways.tensors()[name], part)
        assert sideways.tensors()[name].is_contiguous()


def test_survives_tensors_and_json(case):
    stored = case.build()
    meta = json.loads(json.dumps(stored.meta()))
    again = type(stored).from_tensors({name: part.clone() for name, part in stored.tensors().items()}, meta)
    assert again.meta() == stored.meta()
    assert torch.equal(again.to_dense(), stored.to_dense())


def test_moving_changes_values_only(case):
    stored = case.build()
    half = stored.to(dtype=torch.float16)
    assert half.dtype == torch.float16
    for name, part in stored.tensors().items():
        if not part.is_floating_point():
            assert torch.equal(half.tensors()[name], part)


def test_to_dense_does_not_share_memory(case):
    stored = case.build()
    stored.to_dense().fill_(7.0)
    assert not (stored.values == 7.0).any()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("n_m-2:4", 37 * 50 * (4 + 1)),
        ("semi_structured", 64 * (48 * 4 + 12)),
        ("blocked-kept", 32 * 48 * 4 + 4 * (3 + 6)),
        ("csr-kept", 99 * (4 + 4) + 4 * 10),
        ("gathered-kept", 32 * 70 * 4 + 70 * 4 + 2 * 8 + 32 * 4),
        ("dense", 13 * 17 * 4),
    ],
)
def test_nbytes_counts_values_and_indices(cases, name, expected):
    assert cases[name].build().nbytes == expected


def test_gathered_worked_example():
    """The picture of the class docstring."""
    a, b, c, d, e, f, g, h, i, j = range(1, 11)
    weight = torch.tensor([[a, 0, 0, b, 0], [c, 0, 0, d, 0], [0] * 5, [0, e, f, 0, g], [0, h, i, 0, j]]).float()
    stored = FORMATS["gathered"].from_dense(weight, weight != 0, tile=2)
    assert stored.output_index.tolist() == [0, 1, 3, 4]
    assert stored.tile_offsets.tolist() == [0, 2, 5]
    assert stored.kept_inputs.tolist() == [0, 3, 1, 2, 4]
    assert stored.values.tolist() == [a, c, b, d, e, h, f, i, g, j]


def test_semi_structured_worked_example():
    """The picture of the class docstring: places 1 3 | 0 1 make the byte 77."""
    stored = FORMATS["semi_structured"].from_dense(
        torch.tensor([[0, 1.0, 0, 2.0, 3.0, 4.0, 0, 0]]), torch.tensor([[0, 1, 0, 1, 1, 1, 0, 0]]).bool()
    )
    assert stored.metadata.tolist() == [[77]]
    assert stored.values.tolist() == [[1.0, 2.0, 3.0, 4.0]]


def test_gathered_forms_tiles_from_survivors_or_from_all_outputs():
    mask = torch.ones(6, 3, dtype=torch.bool)
    mask[2:4] = False
    dropped = FORMATS["gathered"].from_dense(torch.ones(6, 3), mask, tile=2)
    held = FORMATS["gathered"].from_dense(torch.ones(6, 3), mask, tile=2, drop_empty_outputs=False)
    assert (dropped.tiles, dropped.output_index.tolist()) == (2, [0, 1, 4, 5])
    assert (held.tiles, held.output_index.tolist()) == (3, list(range(6)))


W = torch.ones(4, 8)
FULL = torch.ones(4, 8, dtype=torch.bool)
ONE = torch.zeros(4, 8, dtype=torch.bool)
ONE[0, 0] = True


@pytest.mark.parametrize(
    ("family", "weight", "mask", "parameters", "message"),
    [
        ("csr", W, FULL.float(), {}, "mask must be bool"),
        ("csr", W, FULL[:2], {}, "mask must be bool"),
        ("csr", W.int(), FULL, {}, "weight must be a float"),
        ("csr", W[None], FULL, {}, "weight must be a float"),
        ("gathered", W, FULL, {"tile": 0}, "tile must be at least 1, not 0"),
        ("gathered", W, ONE, {"tile": 2, "drop_empty_outputs": False}, r"tile 0 of 2 .* has 1 inputs"),
        ("blocked", W, ONE, {"block": [2, 4]}, r"block \(0, 0\) keeps 1 of its 8 weights; 1 blocks"),
        ("blocked", W, FULL, {"block": [3, 4]}, "3x4 do not divide"),
        ("blocked", W, FULL, {"block": [0, 4]}, "both at least 1"),
        ("n_m", W, FULL, {"n": 2, "m": 4}, "output 0 keeps 4 weights in group 0, at most 2 of 4 .* 8 groups"),
        ("n_m", W, FULL, {"n": 2, "m": 3}, "m = 3 do not divide K = 8"),
        ("n_m", W, FULL, {"n": 5, "m": 4}, "not 5:4"),
        ("n_m", torch.ones(1, 65), torch.ones(1, 65).bool(), {"n": 1, "m": 65}, "m <= 64, not 1:65"),
        ("semi_structured", W, FULL, {}, "output 0 keeps 4 weights"),
        ("semi_structured", W[:, :6], FULL[:, :6], {}, "do not divide K = 6"),
    ],
)
def test_wrong_structure_is_refused(family, weight, mask, parameters, message):
    with pytest.raises(ValueError, match=message):
        FORMATS[family].from_dense(weight, mask, **parameters)


@pytest.mark.parametrize(
    ("name", "part", "damage", "message"),
    [
        ("csr", "columns", lambda t: t + 43, r"columns must lie in \[0, 43\)"),
        ("csr", "columns", lambda t: t.flip(0), "do not rise|must lie"),
        ("csr", "row_pointers", lambda t: t + 1, "must be 32 numbers that rise from 0"),
        ("csr", "columns", lambda t: t.long(), "must be int32"),
        ("csr", "values", lambda t: t[1:], "need as many columns"),
        ("blocked-32x32", "block_columns", lambda t: t + 5, r"must lie in \[0, 5\)"),
        ("blocked-32x32", "row_pointers", lambda t: t[1:], "must be 4 numbers"),
        ("blocked-32x32", "values", lambda t: t[:, :16], "need values"),
        ("n_m-5:12", "indices", lambda t: t + 11, "indices must be below m = 12"),
        ("n_m-5:12", "indices", lambda t: t.flip(2), "do not rise"),
        ("n_m-5:12", "values", lambda t: t[..., :4], "must be"),
        ("semi_structured", "metadata", lambda t: torch.zeros_like(t), "must rise"),
        ("semi_structured", "metadata", lambda t: t[:, 1:], "metadata must be uint8"),
        ("semi_structured", "values", lambda t: t[1:], "values must be"),
        ("gathered-uneven", "kept_inputs", lambda t: t + 149, r"kept_inputs must lie in \[0, 149\)"),
        ("gathered-uneven", "kept_inputs", lambda t: t.flip(0), "kept_inputs does not rise"),
        ("gathered-uneven", "output_index", lambda t: t - 50, r"output_index must lie in \[0, 101\)"),
        ("gathered-uneven", "tile_offsets", lambda t: t + 1, "must rise from 0"),
        ("gathered-uneven", "tile_offsets", lambda t: t[1:], "need .* tile offsets"),
        ("gathered-uneven", "values", lambda t: t[1:], "the panels hold"),
        ("dense", "values", lambda t: t[1:], "values are"),
    ],
)
def test_damaged_content_is_refused(cases, name, part, damage, message):
    stored = cases[name].build()
    tensors = stored.tensors()
    tensors[part] = damage(tensors[part])
    with pytest.raises(ValueError, match=message):
        type(stored).from_tensors(tensors, stored.meta())


def test_missing_and_unknown_parts_are_named(cases):
    stored = cases["csr"].build()
    with pytest.raises(ValueError, match=r"lacks \['shape'\] and has the unknown \['size'\]"):
        type(stored).from_tensors(stored.tensors(), {"size": [1, 2]})
