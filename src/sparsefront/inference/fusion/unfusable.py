"""The reason for which a block stays as it is."""


class Unfusable(Exception):
    """A block cannot be exported or rewritten; the message continues "the block ..."."""
