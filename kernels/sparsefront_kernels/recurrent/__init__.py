"""Steps of an LSTM: what is between its products, and a whole step with the product of the state by a sparse weight."""

from sparsefront_kernels.recurrent.gates import lstm_gates, lstm_gates_reference
from sparsefront_kernels.recurrent.step import STEP, SparseGates, lstm_step, step_unsupported_reason

__all__ = ["STEP", "SparseGates", "lstm_gates", "lstm_gates_reference", "lstm_step", "step_unsupported_reason"]
