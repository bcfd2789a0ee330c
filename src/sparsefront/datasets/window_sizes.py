"""How the tokens of a window are shared between a question and its context; without torch, for the settings' checks."""

SPECIAL_TOKENS = 4
"""The most that a tokenizer adds to a pair."""


def question_limit(max_length: int) -> int:
    """Tokens of a question that are kept; a few questions are longer and would leave no room for their context."""
    return min(64, max_length // 3)


def largest_stride(max_length: int) -> int:
    """The overlap that still lets every window advance by a token, after the longest question that is kept."""
    return max_length - question_limit(max_length) - SPECIAL_TOKENS - 1
