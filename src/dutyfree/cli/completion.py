"""`dutyfree completion`: what a shell needs to complete our commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from dutyfree.cli.parser import Parser
from dutyfree.substrates.registry import drivers

HELP = "a script with which your shell completes dutyfree's commands and options"
SHELLS = ("bash", "zsh", "fish")
_LOADING = """\
to use it now and in later shells:
  bash   dutyfree completion bash > ~/.local/share/bash-completion/completions/dutyfree
  zsh    dutyfree completion zsh > ~/.zfunc/_dutyfree      (with fpath+=~/.zfunc before compinit in ~/.zshrc)
  fish   dutyfree completion fish > ~/.config/fish/completions/dutyfree.fish"""


def add_arguments(parser: Parser) -> None:
    """Which shell."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _LOADING
    parser.add_argument("shell", choices=SHELLS, help="yours")


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab  # noqa: PLC0415 - for this command only

    from dutyfree.cli.main import command_line, installed  # noqa: PLC0415 - it imports this module by name

    parser = command_line(list(installed()))
    for action in _actions(parser):
        if action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.dest == "substrate":
            action.choices = [name for name, _ in drivers()]  # this parser parses nothing
    print(shtab.complete(parser, args.shell))
    return 0


def _actions(parser: Parser) -> Iterator[argparse.Action]:
    yield from parser.known
    for child in parser.children.values():
        yield from _actions(child)
