"""The page of the command line, from the commands themselves."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from lakemerge.cli.app import app
from scripts.docs.markdown import paragraph, table

__all__ = ["cli_page", "commands"]


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that `lakemerge --help` shows, with its whole name."""
    yield from _below("lakemerge", typer.main.get_command(app))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    for child in getattr(command, "commands", {}).values():
        if not child.hidden:
            yield f"{name} {child.name}", child
            yield from _below(f"{name} {child.name}", child)


def cli_page() -> str:
    parts = [
        "# The command line\n",
        "This page lists every command with its options.\n",
        "```sh\npip install 'lakemerge[cli]'\n```\n",
        "`lakemerge COMMAND --help` says the same as this page. [Errors](errors.md) lists the exit codes.\n",
    ]
    for name, command in commands():
        parts.append(f"{'##' if name.count(' ') == 1 else '###'} `{name}`\n")
        parts.append(paragraph(command.help) + "\n")
        if not hasattr(command, "commands"):
            arguments = [_argument(one) for one in command.params if one.param_type_name == "argument"]
            parts.append(f"```\n{' '.join([name, '[OPTIONS]', *arguments])}\n```\n")
            kinds = get_type_hints(command.callback)
            shown = [one for one in command.params if not getattr(one, "hidden", False)]
            if rows := [_row(one, _kind(kinds[one.name])) for one in shown if one.name in kinds]:
                parts.append(table(["parameter", "type", "default", "meaning"], rows))
    return "\n".join(parts)


def _argument(parameter: Any) -> str:
    name = _name(parameter) + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _name(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).upper()


def _row(parameter: Any, kind: str) -> list[str]:
    if parameter.param_type_name == "argument":
        spelled = f"`{_name(parameter)}`"
    else:
        spelled = " ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    default = parameter.default
    if parameter.required:
        shown = "required"
    elif default is None or callable(default) or default in ((), []):
        shown = ""
    else:
        shown = f"`{str(default).lower() if isinstance(default, bool) else default}`"
    return [spelled, kind, shown, paragraph(getattr(parameter, "help", None))]


def _kind(hint: Any) -> str:
    """A type for people. That of the function: typer changes how it keeps types."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        (hint,) = (one for one in arguments if one is not NoneType)
        return _kind(hint)
    if origin is Literal:
        return ", ".join(f"`{one}`" for one in arguments)
    if origin is list:
        return f"{_kind(arguments[0])}, repeatable"
    return {bool: "flag", str: "text", int: "integer", float: "number"}.get(hint, hint.__name__)
