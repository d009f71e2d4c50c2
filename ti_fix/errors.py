"""What a user can act on. Each message says what, where and what to do."""

from __future__ import annotations


class TiFixError(Exception):
    """Something that the user can put right; the message ends with what to do."""


class UnreadableFile(TiFixError):
    """A file whose content cannot be understood; `code` names the kind of damage.

    Attributes:
        code: the finding code that the report shows (for example ``truncated``).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class WrongUse(TiFixError):
    """A call or command line that cannot be carried out as it stands."""
