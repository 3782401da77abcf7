"""Completion in bash, zsh and fish. The shell runs `featherback --complete WORDS...` for each word."""

from __future__ import annotations

import os
from pathlib import Path

from featherback.cli.commands import COMMANDS, command_of
from featherback.core.terminal import say
from featherback.errors import FeatherbackError, expected

_SCRIPTS = {
    "bash": """\
_featherback() {
    local IFS=$'\\n'
    COMPREPLY=($(featherback --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _featherback featherback
""",
    "zsh": """\
#compdef featherback
_featherback() {
    local -a found
    found=(${(f)"$(featherback --complete "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    if (( $#found )); then compadd -Q -- $found; else _files; fi
}
compdef _featherback featherback
""",
    "fish": """\
complete -c featherback -a '(featherback --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def complete(words: list[str]) -> None:
    """Print the words that may stand in place of the last of `words`, one a line; none if it is a file or a number."""
    *before, last = words or [""]
    if not before:
        found = [*COMMANDS, "--help", "--version"]
    elif before[0] in COMMANDS:
        found = _candidates(before, last)
    else:
        found = []
    for each in found:
        if each.startswith(last):
            say(each)


def _candidates(before: list[str], last: str) -> list[str]:
    from featherback.cli.parameters import parameters_of

    options = {
        flag: each for each in parameters_of(command_of(before[0])) for flag in (*each.flags, *each.about.aliases)
    }
    option = options.get(before[-1].replace("_", "-"))
    if option is not None and not option.is_switch:
        start = last.rpartition(",")
        return [f"{start[0]}{start[1]}{word}" if option.about.words else word for word in option.words]
    return [*options, "--help", "--help-all"] if last.startswith("-") else []


def show_completion(words: list[str]) -> None:
    """Print the script for the shell in `words`, or for the user's."""
    say(_SCRIPTS[_shell(words)], end="")


def install_completion(words: list[str]) -> None:
    """Write the script where the shell finds it."""
    from featherback.core.files import make_folder, write_bytes

    shell = _shell(words)
    if shell == "zsh":  # which looks in no folder of the user
        say('Add this line to ~/.zshrc:  eval "$(featherback --show-completion zsh)"')
        return
    bash, fish = ("XDG_DATA_HOME", ".local/share"), ("XDG_CONFIG_HOME", ".config")
    variable, usual = bash if shell == "bash" else fish
    place = "bash-completion/completions/featherback" if shell == "bash" else "fish/completions/featherback.fish"
    path = Path(os.environ.get(variable) or Path.home() / usual) / place
    make_folder(path.parent)
    write_bytes(path, _SCRIPTS[shell].encode())
    needs = " It needs the package bash-completion." if shell == "bash" else ""
    say(f"wrote {path}. Completion works in new shells.{needs}")


def _shell(words: list[str]) -> str:
    name = words[0] if words else Path(os.environ.get("SHELL", "")).name
    if name not in _SCRIPTS:
        raise FeatherbackError(f"The shell is {name!r}; {expected(name, _SCRIPTS)} Add its name to the command.")
    return name
