"""Loggers whose messages are safe to read: a value in a message cannot forge a line or command a terminal."""

from __future__ import annotations

import logging

from mergers.wording import printable

__all__ = ["logger"]

_TRACEBACKS = logging.Formatter()


def logger(name: str) -> logging.Logger:
    """The logger of this name. In its records control characters are escaped (:func:`mergers.wording.printable`),
    whatever handlers there are. A message is one line; a traceback keeps its lines."""
    found = logging.getLogger(name)
    found.addFilter(_escaped)  # once: it is always the same one
    return found


def _escaped(record: logging.LogRecord) -> bool:
    message = record.getMessage()
    shown = printable(message)
    if shown != message:
        record.msg, record.args = shown, None
    if record.exc_info and not record.exc_text:
        traceback = _TRACEBACKS.formatException(record.exc_info)
        shown = printable(traceback, lines=True)
        if shown != traceback:
            record.exc_text = shown  # which formatters use in place of their own
    return True
