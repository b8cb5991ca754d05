"""Errors in the words of the command line: parameters of the library are spelled as options.

A command's parameters have the names of the library's parameters to which they are passed. So the option is found by
the parameter that a message marks (:mod:`mergers.wording`).
"""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

from lakemerge.errors import LakeMergeError
from mergers.wording import printable

__all__ = ["has_commands", "one_line", "spelled"]

_NO_ROOM = ". Make room there, and run the command again"
_NO_RIGHT = ". Give this user the right to do that, or run the command as another user"
_REMEDIES = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.EROFS: ". Mount it for writing, or use another place",
}
_commands: list[Any] = []
"""The group of all commands, once they are loaded."""


def has_commands(group: Any) -> None:
    """Spell parameters as options of these commands. Called once, by the module that has them all."""
    _commands[:] = [group]


def one_line(error: Exception, *, command: str | None) -> str:
    """What went wrong and what to do about it, in the words of the command that ran."""
    if isinstance(error, LakeMergeError):
        text = error.worded(partial(spelled, command))
    else:
        remedy = _REMEDIES.get(error.errno or 0, "") if isinstance(error, OSError) else ""
        text = f"{type(error).__name__}: {error}{remedy}"
    return printable(" ".join(text.split()))


def spelled(command: str | None, name: str, value: str | None) -> str:
    """A parameter, with or without a value, as an option of the running command. If that has no such option, it is one
    of another command, whose name is added.

    :param command: the running command.
    :param value: the value, as Python writes it.
    """
    commands = _commands[0].commands if _commands else {}
    own = commands.get(command)
    for running in [] if own is None else [own, *_below(own)]:
        option = _option(running, name, value)
        if option is not None:
            return option
    for other in commands.values():
        for one in [other, *_below(other)]:
            option = _option(one, name, value)
            if option is not None:
                return f"`lakemerge {other.name} {option}`"
    return " ".join([*name.split("_"), *([] if value is None else [value])])


def _below(command: Any) -> list[Any]:
    """The commands of a group of commands."""
    return list(getattr(command, "commands", {}).values())


def _option(command: Any, name: str, value: str | None) -> str | None:
    for parameter in command.params:
        if parameter.name == name:
            return _spelled(parameter, value)
    return None


def _spelled(parameter: Any, value: str | None) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    option = max(parameter.opts, key=len)
    if not parameter.is_flag:
        return option if value is None else f"{option} {value}"
    if value != "False":
        return str(option)
    return max(parameter.secondary_opts, key=len) if parameter.secondary_opts else f"no {option}"
