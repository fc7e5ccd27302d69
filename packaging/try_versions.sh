#!/bin/sh
# Tries what pyproject.toml promises, each in a virtual environment of its own (.venv-*).
#
# try_versions.sh pythons   every CPython of the range that is at hand: unit and contract tests, one real capture
# try_versions.sh floors    the same on the oldest CPython at hand, with the oldest release of each dependency
set -eu
cd "$(dirname "$0")/.."
export PIP_DISABLE_PIP_VERSION_CHECK=1

# The interpreter of one version; empty when there is none. A pyenv shim may exist and not run.
find_python() {
    for each in "python$1" "$HOME/.pyenv/versions/$1".*/bin/python; do
        if "$each" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$1')" >/dev/null 2>&1; then
            echo "$each"
            return
        fi
    done
}

# try_one NAME PYTHON [CONSTRAINTS]
try_one() {
    venv=.venv-$1
    test -x "$venv/bin/python" || "$2" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet 'pip>=25.1'
    "$venv/bin/python" -m pip install --quiet ${3:+--constraint "$3"} --editable '.[agent,bed]' --group dev
    "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/unit tests/contract tests/integration/test_client_embedded.py
    echo "try_versions.sh: $1 ($("$venv/bin/python" --version)): passed"
}

case "${1:-}" in
pythons)
    for version in 3.10 3.11 3.12 3.13; do
        python=$(find_python "$version")
        if [ -n "$python" ]; then
            try_one "$version" "$python"
        else
            echo "try_versions.sh: no CPython $version here: not tried"
        fi
    done
    ;;
floors)
    for version in 3.10 3.11 3.12 3.13; do
        python=$(find_python "$version")
        [ -n "$python" ] && break
    done
    test -x .venv-uv/bin/uv || { "$python" -m venv .venv-uv && .venv-uv/bin/python -m pip install --quiet uv; }
    .venv-uv/bin/uv pip compile --quiet --python "$python" --resolution lowest-direct --extra agent --extra bed \
        --no-annotate --no-header pyproject.toml --output-file .venv-uv/floors.txt
    cat .venv-uv/floors.txt
    try_one floors "$python" .venv-uv/floors.txt
    ;;
*)
    sed -n '2,5s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
