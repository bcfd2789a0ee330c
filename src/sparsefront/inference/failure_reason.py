"""A failure as one line of a result."""


def failure_reason(error: Exception) -> str:
    """The kind of exception and the first line of its message; compilers add pages to it."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
