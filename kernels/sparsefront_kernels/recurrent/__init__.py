"""Steps of an LSTM: the gates between its products, and a whole step including the product with a sparse weight."""

from sparsefront_kernels.recurrent.gates import lstm_gates, lstm_gates_reference
from sparsefront_kernels.recurrent.step import STEP, SparseGates, lstm_step, step_unsupported_reason

__all__ = ["STEP", "SparseGates", "lstm_gates", "lstm_gates_reference", "lstm_step", "step_unsupported_reason"]
