"""A deep network of our operators is compiled without texts that double with each block."""

import logging
import random

import pytest
import torch
from torch import Tensor

from sparsefront.inference.network_modules import shorten_compiler_messages

BLOCKS = 8


@torch.library.custom_op("sparsefront_tests::added", mutates_args=())
def added(x: Tensor, residual: Tensor) -> Tensor:
    return x + residual


@torch.library.custom_op("sparsefront_tests::scaled", mutates_args=())
def scaled(x: Tensor, factor: int) -> Tensor:
    return x * factor


@added.register_fake
def _(x, residual):
    return torch.empty_like(x)


@scaled.register_fake
def _(x, factor):
    return torch.empty_like(x)


@pytest.fixture
def compiler_log(caplog):
    """What Inductor says of a graph: its loggers hand nothing on to others."""
    logger = logging.getLogger("torch._inductor.graph")
    with caplog.at_level(logging.INFO, logger=logger.name):
        logger.addHandler(caplog.handler)
        yield caplog
        logger.removeHandler(caplog.handler)


def test_an_operator_deep_in_a_network_has_a_short_message(compiler_log):
    # another graph each time, whatever was seeded: one that is cached is compiled without a word
    factor = random.SystemRandom().randrange(2, 2**40)

    def forward(x):
        for _ in range(BLOCKS):
            x = added(added(x, x), x)
        return scaled(x, factor)

    shorten_compiler_messages()
    with torch.no_grad():
        y = torch.compile(forward, fullgraph=True)(torch.ones(2, dtype=torch.float64))
    assert y.tolist() == [factor * 3**BLOCKS] * 2
    messages = [message for message in compiler_log.messages if "sparsefront_tests.scaled" in message]
    assert messages and max(map(len, messages)) < 300
