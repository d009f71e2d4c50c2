"""Handlers of pages whose errors become a sentence on the page; faults of ours are logged with their trace."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import ParamSpec, TypeVar

from ti_fix.errors import TiFixError

P = ParamSpec("P")
T = TypeVar("T")

FAULT = (
    "This did not work because of a fault in ti_fix. The console of the WebUI shows where; please report those lines."
)


def guarded(failed: Callable[[str], T]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """For a handler that returns; `failed` makes what is drawn of the sentence."""

    def wrap(handler: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(handler)
        def safe(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return handler(*args, **kwargs)
            except TiFixError as error:
                return failed(str(error))
            except Exception:
                logging.getLogger("ti_fix").exception("the page failed")
                return failed(FAULT)

        return safe

    return wrap


def guarded_steps(failed: Callable[[str], T]) -> Callable[[Callable[P, Iterator[T]]], Callable[P, Iterator[T]]]:
    """The same for a handler that yields."""

    def wrap(handler: Callable[P, Iterator[T]]) -> Callable[P, Iterator[T]]:
        @functools.wraps(handler)
        def safe(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            try:
                yield from handler(*args, **kwargs)
            except TiFixError as error:
                yield failed(str(error))
            except Exception:
                logging.getLogger("ti_fix").exception("the page failed")
                yield failed(FAULT)

        return safe

    return wrap
