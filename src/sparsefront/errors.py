"""The one exception for input that a user can mend."""


class InvalidSetting(ValueError):
    """A configuration value that cannot be used.

    Args:
        key: the configuration key as the user types it, or relative to its group (`validate` adds the group's name).
        value: what was given.
        allowed: in words, what is allowed instead, or why this value cannot work here.
    """

    def __init__(self, key: str, value: object, allowed: str) -> None:
        super().__init__(key, value, allowed)
        self.key, self.value, self.allowed = key, value, allowed

    def __str__(self) -> str:
        return f"{self.key}={self.value}: {self.allowed}"

    def within(self, group: str) -> "InvalidSetting":
        """The same complaint with the key written from the root: `batch_size` in `measure` becomes `measure.batch_size`."""
        return InvalidSetting(f"{group}.{self.key}", self.value, self.allowed)


class UnknownKey(InvalidSetting):
    """A key that the chosen option of its group does not take."""
