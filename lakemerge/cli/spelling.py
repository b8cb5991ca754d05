"""Spells parameters of the library as options of the command line.

A command's parameters have the names of the library's parameters to which they are passed. So the option is found by
the parameter that a message marks (:mod:`mergers.wording`).
"""

from __future__ import annotations

from typing import Any

__all__ = ["spelled"]


def spelled(command: str | None, name: str, value: str | None) -> str:
    """A parameter, with or without a value, as an option of the running command. If that has no such option, it is one
    of another command, whose name is added.

    :param command: the running command.
    :param value: the value, as Python writes it.
    """
    import typer

    from lakemerge.cli.app import app

    group: Any = typer.main.get_command(app)
    own = group.commands.get(command)
    for running in [] if own is None else [own, *_below(own)]:
        option = _option(running, name, value)
        if option is not None:
            return option
    for other in group.commands.values():
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
