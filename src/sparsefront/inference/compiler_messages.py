"""Messages of torch.compile about operators, kept short.

Inductor writes out the operands of an operator that it has no code for, as all of ours, when it meets the first of its kind;
those of the operands too, and so on. In a chain of them with residual connections that text doubles with each block: a network of
six blocks kept a processor busy for more than ten minutes, where others compile in seconds. torch 2.11 makes it for a log that is
off, 2.15 for errors and for those who read the log.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from torch._inductor.exc import OperatorIssue


def shorten_compiler_messages() -> None:
    """Have Inductor name the kinds of operands alone, from now on; for whoever gives a network operators of ours."""
    OperatorIssue.operator_str = staticmethod(_operator_text)


def _operator_text(target: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    named = (f"{name}: {type(value).__name__}" for name, value in kwargs.items())
    return f"  {target}({', '.join([*(type(value).__name__ for value in args), *named])})"
