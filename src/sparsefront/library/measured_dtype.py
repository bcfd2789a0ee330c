"""The dtype in which a network is measured that lies where it lies, in dtypes of its own."""

import math

import torch
from sparsefront_kernels.sparse_layer import SparseLayer
from torch import nn

from sparsefront.errors import InvalidSetting
from sparsefront.measure.agreement import NETWORK_ERROR_LIMIT
from sparsefront.measure.settings import DTYPES, Dtype


def measured_dtype(net: nn.Module) -> Dtype:
    """What `Measure.dtype` calls the coarsest dtype of its weights: that of its products where embeddings or norms stay float32.

    It decides how far two ways of running the network may lie apart.

    Raises:
        InvalidSetting: no measurement is in that dtype.
    """
    dtypes = {parameter.dtype for parameter in net.parameters() if parameter.is_floating_point()}
    dtypes |= {
        layer.format.dtype for layer in net.modules() if isinstance(layer, SparseLayer)
    }  # which has no parameter
    coarsest = max(dtypes, key=lambda dtype: NETWORK_ERROR_LIMIT.get(dtype, math.inf), default=torch.float32)
    for name, dtype in DTYPES.items():
        if dtype == coarsest:
            return name
    raise InvalidSetting("net", coarsest, f"is timed in {', '.join(DTYPES)}")
