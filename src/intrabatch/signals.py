"""What Ctrl-C, a termination and a closed terminal do while something is under way. Only a main thread hears them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


@contextmanager
def handled(handler: Callable[[int, FrameType | None], Any] | signal.Handlers, *numbers: int) -> Iterator[None]:
    """Let these signals call the handler, and put back what they did before."""
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if here}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C or a termination sets, so that the step under way ends well; the second stops at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopped.is_set():
            raise KeyboardInterrupt
        stopped.set()

    with handled(stop, signal.SIGINT, signal.SIGTERM):
        yield stopped


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler by which another signal does what Ctrl-C does."""
    raise KeyboardInterrupt
