"""Steps of an LSTM: the gates between its products, a whole step including the product with a sparse weight, and all steps."""

from sparsefront_kernels.recurrent.gates import lstm_gates, lstm_gates_reference, run_steps
from sparsefront_kernels.recurrent.loop import recurrent_operator, recurrent_steps, weight_of_steps
from sparsefront_kernels.recurrent.step import STEP, SparseGates, lstm_step, step_unsupported_reason

__all__ = [
    "STEP",
    "SparseGates",
    "lstm_gates",
    "lstm_gates_reference",
    "lstm_step",
    "recurrent_operator",
    "recurrent_steps",
    "run_steps",
    "step_unsupported_reason",
    "weight_of_steps",
]
