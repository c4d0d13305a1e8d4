"""The parser of the command line: argparse, with did-you-mean and with defaults from the config file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dutyfree.core.errors import Misuse
from dutyfree.core.settings import suggestion


class Parser(argparse.ArgumentParser):
    """`argparse`'s, which remembers its options and errors as the module says."""

    misuse_code = 2
    """The exit code of a wrong command line."""

    def __init__(self, **options: Any) -> None:
        self.known: list[argparse.Action] = []
        self.children: Mapping[str, Parser] = {}
        super().__init__(**options)

    def add_argument(self, *names: Any, **options: Any) -> argparse.Action:
        """Behave as argparse's method."""
        action = super().add_argument(*names, **options)
        self.known.append(action)
        return action

    def add_subparsers(self, **options: Any) -> Any:
        """Behave as argparse's method."""
        verbs = super().add_subparsers(**options)
        self.children = verbs.choices
        return verbs

    def parse_known_args(self, *given: Any, **options: Any) -> Any:
        """As argparse's, but each parser refuses what it does not know.

        Only the parser of that verb can name the option that was meant.
        """
        found, unknown = super().parse_known_args(*given, **options)
        if unknown:
            self._refuse(unknown)
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Say what is wrong on one line."""
        self.exit(
            self.misuse_code, f"{self.prog}: error: {message}{'' if ';' in message else f'; see: {self.prog} --help'}\n"
        )

    def _refuse(self, words: Sequence[str]) -> NoReturn:
        """Name the option that was meant."""
        word = words[0].partition("=")[0]
        hint = suggestion(word, [name for action in self.known for name in action.option_strings])
        if not hint and any(action.dest == "words" for action in self.known):
            hint = "; the command's own options go behind --"
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")

    def take_defaults(self, table: Mapping[str, Any], where: str) -> None:
        """Make what the config file says the defaults of these options; `Misuse` names the key."""
        options = {_key(action): action for action in self.known if _key(action)}
        for key, value in table.items():
            if key in self.children and isinstance(value, dict):
                self.children[key].take_defaults(value, f"{where}: {key}")
                continue
            action = options.get(key)
            if action is None:
                hint = (
                    suggestion(key, [*options, *self.children])
                    or f"; there are {', '.join([*options, *self.children])}"
                )
                raise Misuse(f"{key!r} is not an option{hint}", field=where)
            try:
                action.default = _converted(action, value)
            except (ValueError, TypeError, argparse.ArgumentTypeError) as error:
                raise Misuse(f"{key} cannot be {value!r}: {error}", field=where) from error
            action.required = False


class Appending(argparse.Action):
    """A repeatable option. What is given replaces its default; argparse's `append` adds to it."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: Any = None) -> None:  # noqa: ARG002  # fmt: skip
        """Take one more."""
        given = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [value] if given is self.default else [*given, value])


def _key(action: argparse.Action) -> str:
    """An option's name in the config file: its long one. Those that end the program have none."""
    names = [name for name in action.option_strings if name.startswith("--")]
    return "" if not names or action.dest in ("help", "version") else names[0].removeprefix("--")


def _converted(action: argparse.Action, value: object) -> object:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise TypeError("must be true or false")
        return value
    if isinstance(action, Appending):
        values = value if isinstance(value, list) else [value]
        return [_one(action, each) for each in values]
    return _one(action, value)


def _one(action: argparse.Action, value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("must be text or a number")
    found = action.type(str(value)) if callable(action.type) else str(value)
    if action.choices is not None and found not in action.choices:
        raise ValueError(f"must be one of {', '.join(map(str, action.choices))}")
    return found
