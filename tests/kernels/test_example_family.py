"""The worked example of kernels/README.md: the page shows the file, and the family is one like all others."""

import json
from pathlib import Path

import example_family
import pytest
import sparsefront_kernels
import torch
from example_family import ENTRIES, FORMAT
from sparsefront_kernels import Problem

REFERENCE, KERNEL = ENTRIES
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
DIAGONALS = {"some": (24, 40, (0, 3, 39)), "tall": (40, 24, (1, 2, 23)), "all": (5, 7, range(7)), "none": (6, 4, ())}


@pytest.fixture(params=DIAGONALS)
def drawn(request):
    """Weight and mask; what is pruned is NaN."""
    n, k, diagonals = DIAGONALS[request.param]
    mask = torch.zeros(n, k, dtype=torch.bool)
    for diagonal in diagonals:
        mask[torch.arange(n), (torch.arange(n) + diagonal) % k] = True
    return torch.randn(n, k).masked_fill(~mask, torch.nan), mask


def test_the_page_shows_the_file():
    page = (Path(sparsefront_kernels.__file__).parents[1] / "README.md").read_text()
    code = Path(example_family.__file__).read_text()
    assert f"```python\n{code}```" in page
    assert len(code.splitlines()) <= 80


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_format_is_exact(drawn, dtype):
    weight, mask = drawn[0].to(dtype), drawn[1]
    stored = FORMAT.from_dense(weight, mask)
    assert torch.equal(stored.to_dense(), torch.where(mask, weight, 0.0))
    assert torch.equal(FORMAT.from_dense(weight.t().contiguous().t(), mask).values, stored.values)
    again = FORMAT.from_tensors(stored.tensors(), json.loads(json.dumps(stored.meta())))
    assert again.meta() == stored.meta() and torch.equal(again.to_dense(), stored.to_dense())
    assert all(part.is_contiguous() for part in stored.tensors().values())
    assert stored.nbytes == len(stored.diagonals) * (stored.shape[0] * dtype.itemsize + 4)
    doubled = stored.scaled(torch.full((stored.shape[0],), 2.0))
    assert torch.equal(doubled.to_dense(), 2 * stored.to_dense())


def test_what_it_cannot_hold_is_rejected():
    mask = torch.eye(4).bool()
    mask[2, 2] = False
    with pytest.raises(ValueError, match="diagonal 0 is kept only in part"):
        FORMAT.from_dense(torch.ones(4, 4), mask)
    with pytest.raises(ValueError, match="must ascend in \\[0, 4\\), not \\[1, 1\\]"):
        FORMAT((4, 4), torch.ones(2, 4), torch.tensor([1, 1], dtype=torch.int32))
    with pytest.raises(ValueError, match="values \\[1, 3\\] for 1 diagonals"):
        FORMAT((4, 4), torch.ones(1, 3), torch.tensor([1], dtype=torch.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m", [0, 1, 7])
def test_products_against_float64(drawn, m, dtype, activations, expected_product, assert_close):
    stored = FORMAT.from_dense(drawn[0].to(dtype), drawn[1])
    n, k = stored.shape
    x, bias = activations(Problem(m, k, n, dtype, "cpu"), "transposed"), torch.randn(n)
    for entry in ENTRIES:
        for added in (bias, None):
            assert_close(entry.run(x, entry.pack(stored), added), expected_product(x, stored, added))


def test_its_op_is_sound_and_compiles(drawn):
    packed = KERNEL.pack(FORMAT.from_dense(*drawn))
    x, bias = torch.randn(6, packed.k, requires_grad=True), torch.randn(packed.n, requires_grad=True)
    op = torch.ops.sparsefront.diagonal_torch.default
    torch.library.opcheck(op, (x, packed.n, packed.k, packed.values, packed.inputs, bias, False, False))
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: KERNEL.run(x, packed, bias) * 2, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), KERNEL.run(x, packed, bias) * 2)
