#!/usr/bin/env bash
# Makes .venv from requirements/cpu.lock and installs the project into it, editable; with the argument `training`
# .venv-training from requirements/training.lock. Where all is in place it does nothing; a broken-off installation is
# begun anew.
#   PYTHON=…       the interpreter to use (default: python3.11, else another from 3.11 to 3.13)
#   TORCH_INDEX=…  where torch's CPU build is taken from if pip as configured does not find it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

name=${1:-}
venv=.venv${name:+-$name}
lock=requirements/${name:-cpu}.lock
engine=$([ "$name" = training ] && echo trl || echo vllm)   # what it must be able to import, besides the rest
stamp=$venv/.installed    # written last: what the installation was made from
begun=$venv/.installing   # there while packages are put in
log=$venv/install.log
torch_index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

say() { printf 'install: %s\n' "$*"; }
fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

# Names the folder too: a virtual environment does not survive a move.
wanted() {
    cat "$lock" requirements/left-out.txt pyproject.toml scripts/install.sh | sha256sum | cut -d' ' -f1
    pwd
}

usable() { "$1" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; }

find_python() {
    local candidate candidates=(python3.11 /usr/bin/python3.11 python3 python3.12 python3.13)
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
    fail "no Python from 3.11 to 3.13 with venv and ensurepip among: ${candidates[*]}
         (the lock is for 3.11; on Debian and Ubuntu venv is the package python3.11-venv; or name one: make install PYTHON=/path/to/python3.11)"
}

# Runs pip; its words go to the log, and to the terminal if it fails.
pip() { "$venv/bin/python" -m pip "$@" >>"$log" 2>&1; }
pip_or_fail() {
    pip "$@" || {
        # At status 1 pip itself gave up and left whole packages: the next run goes on from here.
        [ $? -ne 1 ] || rm -f "$begun"
        tail -n 25 "$log" >&2
        fail "pip $1 failed, its last words are above, all of them in $log"
    }
}

install_torch() {   # the one package that may need another index; for all others that index would only cost time
    local pin
    pin=$(grep '^torch==' "$lock")
    pip install --no-deps $compile "$pin" && return
    say "$pin is not to be had from pip's own sources; trying $torch_index"
    pip_or_fail install --no-deps $compile --index-url "$torch_index" "$pin"
}

drop_left_out() {
    sed 's/ *#.*//' requirements/left-out.txt | grep . | while read -r name; do
        if "$venv/bin/python" -m pip show --quiet "$name" >/dev/null 2>&1; then pip uninstall --yes "$name"; fi
    done
}

trap 'exit 130' INT TERM   # pip turns them into a status of its own
exec 9<scripts/install.sh
flock 9   # one at a time

if [ ! -e "$begun" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(wanted)" ] && usable "$venv/bin/python"; then
    exit 0
fi

case "$(uname -s) $(uname -m)" in
    "Linux x86_64") ;;
    *) fail "$lock is for Linux on x86_64, this is $(uname -s) on $(uname -m): make a virtual environment and use pip install -e '.[cpu,dev]'" ;;
esac

started=$SECONDS
if [ -e "$begun" ]; then
    say "the last installation was broken off; beginning anew"
    rm -rf "$venv"
elif [ -e "$venv" ] && ! usable "$venv/bin/python"; then
    say "the Python of $venv is gone or is not one from 3.11 to 3.13; beginning anew"
    rm -rf "$venv"
elif [ -e "$stamp" ] && [ "$(tail -n 1 "$stamp")" != "$(pwd)" ]; then
    say "$venv was made in $(tail -n 1 "$stamp"); beginning anew"
    rm -rf "$venv"
fi

compile=--compile
if [ ! -e "$venv" ]; then
    python=$(find_python)
    compile=--no-compile   # all at once at the end, on every core: pip uses one
    mkdir "$venv"
    touch "$begun"
    "$python" -m venv "$venv"
fi
touch "$begun"
rm -f "$stamp"
: >"$log"
version=$("$venv/bin/python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
[ "$version" = 3.11 ] || say "the lock is for Python 3.11, this is $version: packages without a wheel for it will be built, or fail"

say "$(grep -vc '^#' "$lock") packages of $lock into $venv with Python $version; pip writes to $log"
install_torch
grep -v '^torch==' "$lock" >"$venv/lock.txt"
pip_or_fail install --no-deps $compile --requirement "$venv/lock.txt"
drop_left_out
if [ "$compile" = --no-compile ]; then
    say "packages are in after $((SECONDS - started)) s; compiling them"
    # Packages carry files that are templates or for another Python; that those do not compile is no matter.
    "$venv/bin/python" -m compileall -q -j 0 "$venv/lib" >>"$log" 2>&1 || true
fi
rm -f "$begun"
pip_or_fail install --no-deps --no-build-isolation --editable .
"$venv/bin/python" -c 'import polars, ray, torch, transformers, '"$engine"', trustjudge_ray' >>"$log" 2>&1 || {
    tail -n 25 "$log" >&2
    fail "what was installed does not import, see above"
}

wanted >"$stamp.new"
mv "$stamp.new" "$stamp"
say "done in $((SECONDS - started)) s"
