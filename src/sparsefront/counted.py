"""A number with its noun: `1 layer`, `2 layers`."""


def counted(number: int | str, noun: str) -> str:
    """`1 run`, `2 runs`, `0.5 epochs`.

    Args:
        number: as it is to be read.
        noun: of one thing; of several it ends in s.
    """
    return f"{number} {noun}" + ("" if str(number) == "1" else "s")
