"""What a user can act on. Each message says what, where and what to do."""

from __future__ import annotations

MAX_MESSAGE = 560
"""Characters of a message, whatever names a file brings into it."""

OTHER_KIND = "it is another kind of file or made to harm, move it out of the embeddings folder."
MALWARE = "it may be malware, do not load it."


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    """A text that may hold a stranger's words, safe to show on one line of a terminal, a log or a page.

    Control characters (terminal commands, line ends), characters without a glyph (which can turn the reading direction
    around) and lone surrogates are written as escapes; what is too long is cut.
    """
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 2].rstrip()} …"


def quoted(name: str) -> str:
    """A name from a file in quotes, short enough that the sentence around it stays readable."""
    return repr(name if len(name) <= 60 else f"{name[:59]}…")


class TiFixError(Exception):
    """Something that the user can put right; the message ends with what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


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
