"""The products that the operator benchmark measures: lists, filters, any shape."""

import pytest
from sparsefront_kernels.bench.problems import all_shapes, any_shape, chosen_shapes, nmsparse_shapes


def test_shapes_are_those_of_the_paper():
    shapes = {shape.name: (shape.m, shape.k, shape.n) for shape in nmsparse_shapes()}
    assert len(shapes) == 32
    # columns of the table in the paper
    assert shapes["M1"] == (1, 1024, 1024) and shapes["M8"] == (1, 20480, 5120)
    assert shapes["M9"] == (256, 1024, 1024) and shapes["M17"] == (4096, 4096, 4096)
    assert shapes["M22"] == (1024, 1024, 4096) and shapes["M32"] == (4096, 20480, 5120)


def test_filters_combine():
    assert [shape.name for shape in chosen_shapes(m=[4096], k=[4096])] == ["M17", "M26"]
    assert chosen_shapes() == nmsparse_shapes()
    assert {shape.m for shape in chosen_shapes(m=[2, 50432])} == {2, 50432}
    assert {shape.m for shape in chosen_shapes(["small_m8-*", "M1?"], k=[4096])} == {8, 256, 1024, 4096}
    assert len({shape.name for shape in all_shapes()}) == len(all_shapes())


@pytest.mark.parametrize(
    ("names", "filters", "message"),
    [
        (["M99"], {}, "no shape is called M99; there are M1, M2"),
        ([], {"m": [3]}, "no shape passes the filters"),
        (["M1"], {"batch": [8]}, "no shape passes the filters"),
    ],
)
def test_filters_that_fit_nothing_are_rejected(names, filters, message):
    with pytest.raises(ValueError, match=message):
        chosen_shapes(names, **filters)


@pytest.mark.parametrize("text", ["77x4096", "0x8x8", "8*8*8", "8x8x8x8", "8x-8x8", ""])
def test_shapes_that_are_none(text):
    with pytest.raises(ValueError, match="a shape is MxKxN in whole numbers"):
        any_shape(text)
