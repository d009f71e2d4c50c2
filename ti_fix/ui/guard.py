"""What stands between the browser and a handler.

Errors are kept from the browser: the user reads a sentence, the console has the trace of our faults. What changes files
is not done for strangers.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Concatenate, ParamSpec, TypeVar

from ti_fix.errors import TiFixError
from ti_fix.ui import markup
from ti_fix.ui.desk import Desk

P = ParamSpec("P")
S = TypeVar("S")

FAULT = (
    "This did not work because of a fault in ti_fix. The console of the WebUI shows where; please report those lines."
)


def guarded(show: Callable[[str], S]) -> Callable[[Callable[P, S]], Callable[P, S]]:
    """A decorator for handlers that return what is to be drawn.

    Args:
        show: makes that of a message (HTML).
    """

    def decorate(handler: Callable[P, S]) -> Callable[P, S]:
        @functools.wraps(handler)
        def safe(*args: P.args, **kwargs: P.kwargs) -> S:
            try:
                return handler(*args, **kwargs)
            except TiFixError as error:
                return show(markup.message(str(error), "bad"))
            except Exception:
                logging.getLogger("ti_fix").exception("the page failed")
                return show(markup.message(FAULT, "bad"))

        return safe

    return decorate


def guarded_steps(show: Callable[[str], S]) -> Callable[[Callable[P, Iterator[S]]], Callable[P, Iterator[S]]]:
    """The same for handlers that yield."""

    def decorate(handler: Callable[P, Iterator[S]]) -> Callable[P, Iterator[S]]:
        @functools.wraps(handler)
        def safe(*args: P.args, **kwargs: P.kwargs) -> Iterator[S]:
            try:
                yield from handler(*args, **kwargs)
            except TiFixError as error:
                yield show(markup.message(str(error), "bad"))
            except Exception:
                logging.getLogger("ti_fix").exception("the page failed")
                yield show(markup.message(FAULT, "bad"))

        return safe

    return decorate


def owners_only(handler: Callable[Concatenate[Desk, P], S]) -> Callable[Concatenate[Desk, P], S]:
    """A decorator, below the others, for handlers that change files: not where anybody can be the visitor."""

    @functools.wraps(handler)
    def checked(desk: Desk, /, *args: P.args, **kwargs: P.kwargs) -> S:
        desk.refuse_strangers()
        return handler(desk, *args, **kwargs)

    return checked
