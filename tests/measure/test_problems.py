"""What layers receive is watched, not guessed."""

import torch
from torch import nn

from sparsefront.measure.problems import observe_problems


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.fc = nn.Linear(8, 8)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        tokens = self.conv(x).flatten(2).transpose(1, 2)  # [B, H' * W', 8]
        return self.fc(self.fc(tokens)[:, :1])


def test_rows_are_pixels_or_tokens_of_the_largest_call():
    net = Net().eval()
    seen = observe_problems(net, {"x": torch.randn(2, 3, 8, 8)}, ["conv", "fc", "unused"])
    conv, fc = seen["conv"], seen["fc"]
    assert (conv.problem.m, conv.problem.k, conv.problem.n) == (2 * 4 * 4, 27, 8)
    assert conv.input_shape == (2, 3, 8, 8)
    assert (fc.problem.m, fc.problem.k, fc.problem.n) == (32, 8, 8)
    assert (fc.problem.dtype, fc.problem.device.type) == (torch.float32, "cpu")
    assert "unused" not in seen


def test_a_layer_that_gives_more_than_its_product_is_seen():
    class WithBias(nn.Linear):
        def forward(self, x):
            return super().forward(x), self.bias

    net = nn.Sequential(nn.Linear(4, 6), WithBias(6, 3)).eval()
    seen = observe_problems(net, {"input": torch.randn(5, 4)}, ["0", "1"])
    assert (seen["1"].problem.m, seen["1"].problem.k, seen["1"].problem.n) == (5, 6, 3)


def test_no_hook_stays_behind():
    net = Net().eval()
    observe_problems(net, {"x": torch.randn(1, 3, 8, 8)}, ["conv", "fc"])
    assert not net.conv._forward_hooks and not net.fc._forward_hooks
