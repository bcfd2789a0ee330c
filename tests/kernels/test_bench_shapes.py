"""The products that the operator benchmark measures: lists, filters, any shape."""

import pytest
from sparsefront_kernels.bench import __main__ as command
from sparsefront_kernels.bench.problems import Shape, all_shapes, any_shape, chosen_shapes, nmsparse_shapes


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


def test_the_batch_sweep_is_berts_body():
    sweep = {shape.name: (shape.m, shape.k, shape.n) for shape in chosen_shapes(batch=[1, 128], k=[768], n=[3072])}
    assert sweep == {"batch1-768x3072": (128, 768, 3072), "batch128-768x3072": (16384, 768, 3072)}
    assert [shape.name for shape in chosen_shapes(["batch8-1024x4096"])] == ["batch8-1024x4096"]
    assert not any(shape.name.startswith("batch") for shape in chosen_shapes(m=[1024])), "sizes alone do not choose it"


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


def test_any_shape_is_measured():
    odd = any_shape("77x4096x11008")
    assert odd == Shape("77x4096x11008", 77, 4096, 11008)
    assert chosen_shapes(sized=[odd, odd]) == [odd], "alone where nothing else is asked for"
    assert [shape.name for shape in chosen_shapes(["M1"], sized=[odd])] == ["M1", "77x4096x11008"]
    assert len(chosen_shapes(m=[256], sized=[odd])) == 9


def test_any_shape_on_the_command_line():
    asked = command.parser().parse_args(["--shape", "77x4096x11008,1x2x3", "5x6x7"])
    assert [shape.name for shape in command._shapes(asked)] == ["77x4096x11008", "1x2x3", "5x6x7"]


@pytest.mark.parametrize("text", ["77x4096", "0x8x8", "8*8*8", "8x8x8x8", "8x-8x8", ""])
def test_shapes_that_are_none(text):
    with pytest.raises(ValueError, match="a shape is MxKxN in whole numbers"):
        any_shape(text)
