"""What is done element by element between products: the change of layout, an epilogue that no product fused, gates of LSTMs."""

from sparsefront_kernels.pointwise.lstm import lstm_gates, lstm_gates_reference
from sparsefront_kernels.pointwise.op import contiguous_transpose, epilogue, transposed

__all__ = ["contiguous_transpose", "epilogue", "lstm_gates", "lstm_gates_reference", "transposed"]
