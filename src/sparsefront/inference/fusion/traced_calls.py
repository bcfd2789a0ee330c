"""How a network calls its blocks while it is traced: otherwise than in eager mode where it looks at values.

transformers gives attention no mask where nothing is masked, but one under torch.compile and while a CUDA graph is recorded.
"""

import copy
import logging
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from sparsefront.errors import failure_reason
from sparsefront.inference.fusion.find import BlockCall, observe_calls

log = logging.getLogger(__name__)


def observe_traced_calls(net: nn.Module, blocks: list[str], inputs: Mapping[str, Any]) -> dict[str, BlockCall]:
    """As `observe_calls`, with tensors that have a device, a dtype and sizes but no values; nothing runs on the device.

    Returns:
        none where the network needs values, so that it cannot be traced as a whole either.
    """
    try:
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        tensors = {id(tensor): mode.from_tensor(tensor) for tensor in (*net.parameters(), *net.buffers())}
        traced = copy.deepcopy(net, tensors)  # a network may keep what it computes
        fake = {name: mode.from_tensor(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
        with mode:
            return observe_calls(traced, blocks, fake)
    except Exception as error:  # a network may need values in any way
        log.debug("the network cannot be traced as a whole: %s", failure_reason(error))
        return {}
