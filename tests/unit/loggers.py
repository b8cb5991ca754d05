"""The loggers that commands set up, for tests that run commands in their own process."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["kept_loggers"]


@contextmanager
def kept_loggers() -> Iterator[None]:
    """Commands send the log of services to their error stream; other tests' loggers stay as they were."""
    loggers = [logging.getLogger(name) for name in ("compaction", "lakemerge")]
    before = [(logger.handlers, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers = []  # an earlier test's write to a stream that is closed
    yield
    for logger, (handlers, level) in zip(loggers, before, strict=True):
        logger.handlers = handlers
        logger.setLevel(level)
