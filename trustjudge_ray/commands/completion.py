"""The command `completion`: scripts that make a shell complete commands, options, files and configuration keys."""

import os
from typing import ClassVar

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    split_arg_string,
)

from trustjudge_ray.commands.completing import FOLDER
from trustjudge_ray.commands.options import Words

PROGRAM = "trustjudge"
VARIABLE = "_TRUSTJUDGE_COMPLETE"
"""The environment variable by which a shell asks for completions."""

_BASH = r"""
%(complete_func)s() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        [[ -n "$line" ]] || continue
        case "${line%%%%,*}" in
            part) compopt -o nospace ;;
            file | dir) compopt -o filenames ;;
        esac
        COMPREPLY+=("${line#*,}")
    done < <(COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" \
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}
complete -F %(complete_func)s %(prog_name)s
""".lstrip()

_ZSH = r"""
#compdef %(prog_name)s
%(complete_func)s() {
    local -a plain part
    local line
    (( $+commands[%(prog_name)s] )) || return 1
    for line in "${(@f)$(COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \
        %(complete_var)s=zsh_complete %(prog_name)s 2>/dev/null)}"; do
        case "${line%%%%,*}" in
            part | dir) part+=("${line#*,}") ;;
            *) [[ -n "$line" ]] && plain+=("${line#*,}") ;;
        esac
    done
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#part )) && compadd -U -S '' -V unsorted -a part
    (( $#plain + $#part ))
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
""".lstrip()

_FISH = r"""
function %(complete_func)s
    for line in (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp) \
        COMP_CWORD=(commandline -t) %(prog_name)s 2>/dev/null)
        test -n "$line"; and string replace -r '^[a-z]+,' '' -- $line
    end
end
complete --no-files --command %(prog_name)s --arguments "(%(complete_func)s)"
""".lstrip()


class Bash(ShellComplete):
    """Bash, whose words end at `=` and `:`: the line is cut into words here, and an item is what comes after those."""

    name: ClassVar[str] = "bash"
    source_template: ClassVar[str] = _BASH

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is being written, and that."""
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        return (words, "") if line[-1:].isspace() or not words else (words[:-1], words[-1])

    def format_completion(self, item: CompletionItem[str]) -> str:
        """An item's kind and what bash puts in place of its own idea of a word."""
        _, incomplete = self.get_completion_args()
        breaks = [mark for mark in "=:" if mark in os.environ.get("COMP_WORDBREAKS", "=:")]
        cut = max([incomplete.rfind(mark) for mark in breaks], default=-1) + 1
        value = item.value[cut:] if item.value.startswith(incomplete[:cut]) else item.value
        return f"{item.type},{value.rstrip('/') if item.type == FOLDER else value}"


class Zsh(ZshComplete):
    """Zsh, with a kind of item that gets no space behind it."""

    source_template: ClassVar[str] = _ZSH

    def format_completion(self, item: CompletionItem[str]) -> str:
        """An item's kind and text."""
        return f"{item.type},{item.value}"


class Fish(FishComplete):
    """Fish, which leaves out the space by itself where an item ends with `=`, `.` or `/`."""

    source_template: ClassVar[str] = _FISH

    def format_completion(self, item: CompletionItem[str]) -> str:
        """An item's kind and text."""
        return f"{item.type},{item.value}"


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}
for _shell in SHELLS.values():
    add_completion_class(_shell)


@click.command()
@click.argument("shell", metavar="bash|zsh|fish", type=Words(list(SHELLS)))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script for the shell: it then completes commands, options, files, and keys such as plan.design=blocks.

    Once, then start a new shell:

    \b
    trustjudge completion bash > ~/.local/share/bash-completion/completions/trustjudge
    trustjudge completion zsh > "${fpath[1]}/_trustjudge"
    trustjudge completion fish > ~/.config/fish/completions/trustjudge.fish

    For bash without the package bash-completion, put this line into ~/.bashrc (zsh: ~/.zshrc, after compinit):

    \b
    eval "$(trustjudge completion bash)"
    """
    script = SHELLS[shell](context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(script.source(), nl=False)
