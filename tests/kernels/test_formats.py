"""Storage formats: exact round trips, honest sizes, broken content rejected."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
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


def test_non_contiguous_weight(case):
    weight, mask = case.dense()
    sideways = FORMATS[case.family].from_dense(
        weight.t().contiguous().t(), mask.t().contiguous().t(), **case.parameters
    )
    for name, part in case.build().tensors().items():
        assert torch.equal(sideways.tensors()[name], part)
        assert sideways.tensors()[name].is_contiguous()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_survives_a_file(case, dtype, tmp_path):
    """Bit for bit, in the tensors and in the weight that they stand for."""
    stored = case.build().to(dtype=dtype)
    save_file(stored.tensors(), tmp_path / "weight.safetensors", metadata={"meta": json.dumps(stored.meta())})
    with safe_open(tmp_path / "weight.safetensors", framework="pt") as file:
        meta = json.loads(file.metadata()["meta"])
        again = type(stored).from_tensors({name: file.get_tensor(name) for name in file.keys()}, meta)
    assert again.meta() == stored.meta()
    assert again.tensors().keys() == stored.tensors().keys()
    assert again.dtype == dtype
    assert torch.equal(bits(again.to_dense()), bits(stored.to_dense()))
    for name, part in stored.tensors().items():
        assert torch.equal(again.tensors()[name].view(torch.uint8), part.view(torch.uint8)), name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("n_m-2:4", 37 * 50 * (4 + 1)),
        ("semi_structured", 64 * (48 * 4 + 12)),
        ("blocked-kept", 32 * 48 * 4 + 4 * (3 + 6)),
        ("csr-kept", 99 * (4 + 4) + 4 * 10),
        ("gathered-kept", 32 * 70 * 4 + 70 * 4 + 2 * 8 + 32 * 4),
        ("dense", 13 * 17 * 4),
        ("n_m-2:4-permuted", 37 * 32 * (4 + 1) + 64 * 4),
        ("ell-2", 12 * 4 * (4 * 4 + 4)),
        ("gathered_overlay-kept", 20 * 9 * 4 + 3 * 9 * 4 + 4 * 8 + 20 * 4 + 21 * 4),
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


def test_ell_worked_example():
    """The picture of the class docstring."""
    a, b, c, d, e, f = range(1, 7)
    weight = torch.tensor([[0, a, 0, b], [c, d, 0, 0], [e, 0, 0, f]]).float()
    stored = FORMATS["ell"].from_dense(weight, weight != 0, block=1)
    assert stored.columns.tolist() == [[1, 3], [0, 1], [0, 3]]
    assert stored.values.flatten().tolist() == [a, b, c, d, e, f]


def test_gathered_overlay_worked_example():
    """The picture of the class docstring: output 2 keeps one weight alone, and is no member of a tile."""
    a, b, c, d, x, y = range(1, 7)
    weight = torch.tensor([[a, 0, b, x], [c, 0, d, 0], [0, y, 0, 0]]).float()
    stored = FORMATS["gathered_overlay"].from_dense(weight, weight != 0, tile=2)
    assert (stored.output_index.tolist(), stored.kept_inputs.tolist()) == ([0, 1], [0, 2])
    assert stored.values.tolist() == [a, c, b, d]
    assert (stored.overlay_values.tolist(), stored.overlay_columns.tolist()) == ([x, y], [3, 1])


masks = st.tuples(st.integers(1, 12), st.integers(1, 9)).flatmap(
    lambda shape: st.lists(st.lists(st.booleans(), min_size=shape[1], max_size=shape[1]), min_size=1, max_size=shape[0])
)


@settings(max_examples=60, derandomize=True)
@given(mask=masks, tile=st.integers(1, 5), seed=st.integers(0, 99))
def test_covers_and_overlays_hold_any_mask(mask, tile, seed):
    """Exactly, whatever the mask and the order; and no weight in a tile that one of its outputs does not keep."""
    mask = torch.tensor(mask)
    weight = torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed))
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    overlaid = FORMATS["gathered_overlay"].from_dense(weight, mask, tile=tile)
    covers = [
        FORMATS["gathered"].from_dense(weight, mask, tile=tile, fill=True, output_order=order, drop_empty_outputs=drop)
        for drop in (True, False)
    ]
    for stored in (overlaid, *covers):
        assert torch.equal(bits(stored.to_dense()), bits(torch.where(mask, weight, 0.0)))
    assert overlaid.values.numel() + overlaid.overlay_values.numel() == int(mask.sum())


W = torch.ones(4, 8)
FULL = torch.ones(4, 8, dtype=torch.bool)
ONE = torch.zeros(4, 8, dtype=torch.bool)
ONE[0, 0] = True
TWICE = torch.tensor([0, 1, 1, 3])


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
        ("gathered", W, FULL, {"tile": 2, "output_order": TWICE}, "output_order must hold each of 0 to 3 once"),
        ("gathered", W, FULL, {"tile": 2, "output_order": TWICE[1:]}, "output_order must be 4 whole numbers"),
        ("gathered", W, FULL, {"tile": 2, "output_order": TWICE.float()}, "must be 4 whole numbers, not torch.float32"),
        ("n_m", W, ONE, {"n": 1, "m": 4, "input_order": TWICE}, "input_order must be 8 whole numbers"),
        ("semi_structured", W, ONE, {"input_order": TWICE.repeat(2)}, "each of 0 to 7 once"),
        ("ell", W, FULL, {"block": 3}, "block must be one of 1, 2, 4, not 3"),
        ("ell", W, ONE, {"block": 1}, "block row 1 keeps 0 blocks of 1x1, block row 0 keeps 1"),
        ("ell", W, ONE, {"block": 2}, r"block \(0, 0\) keeps 1 of its 4 weights"),
        ("ell", W[:3], FULL[:3], {"block": 2}, "2x2 do not divide"),
        ("gathered_overlay", W, FULL, {"tile": 0}, "tile must be at least 1, not 0"),
        ("semi_structured", W[:, :6], FULL[:, :6], {}, "do not divide K = 6"),
    ],
)
def test_wrong_structure_is_rejected(family, weight, mask, parameters, message):
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
        ("gathered-shuffled", "output_index", lambda t: t.where(t != 5, 6), "names an output twice"),
        ("n_m-2:4-permuted", "input_order", lambda t: t.long(), "input_order must be int32"),
        ("n_m-2:4-permuted", "input_order", lambda t: t * 0, "each of 0 to 63 once"),
        ("semi_structured-permuted", "input_order", lambda t: t[1:], "input_order must be 96 whole numbers"),
        ("ell-2", "columns", lambda t: t + 9, r"columns must lie in \[0, 9\)"),
        ("ell-2", "columns", lambda t: t.flip(1), "do not rise"),
        ("ell-2", "columns", lambda t: t.long(), "must be int32"),
        ("ell-2", "values", lambda t: t[:, 1:], "values must be"),
        ("gathered_overlay", "overlay_columns", lambda t: t * 0, "do not rise"),
        (
            "gathered_overlay",
            "overlay_values",
            lambda t: t.half(),
            "tiles are torch.float32, the overlay torch.float16",
        ),
        ("dense", "values", lambda t: t[1:], "values are"),
    ],
)
def test_damaged_content_is_rejected(cases, name, part, damage, message):
    stored = cases[name].build()
    tensors = stored.tensors()
    tensors[part] = damage(tensors[part])
    with pytest.raises(ValueError, match=message):
        type(stored).from_tensors(tensors, stored.meta())


def test_missing_and_unknown_parts_are_named(cases):
    stored = cases["csr"].build()
    with pytest.raises(ValueError, match=r"lacks \['shape'\] and has the unknown \['size'\]"):
        type(stored).from_tensors(stored.tensors(), {"size": [1, 2]})


def test_weight_in_tile_and_overlay(cases):
    stored = cases["gathered_overlay"].build()
    tiles = FORMATS["gathered"].from_dense(
        torch.ones(stored.shape), torch.ones(stored.shape, dtype=torch.bool), tile=16
    )
    with pytest.raises(ValueError, match=f"{stored.overlay_values.numel()} weights are in a tile and in the overlay"):
        type(stored).from_tensors(stored.tensors() | tiles.tensors(), stored.meta())
