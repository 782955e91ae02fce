#!/usr/bin/env bash
# All tests, quick ones first and on several processes; then those that start Ray in one, and beside them in another those
# that start an engine, an S3 server or a browser. With arguments they are pytest's, in one process.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[ $# -eq 0 ] || exec "$python" -m pytest "$@"
parts="ray or engine or s3 or demo or browser"
processes=$(nproc)
status=0
"$python" -m pytest -m "not ($parts)" -n "$((processes < 4 ? processes : 4))" --dist loadfile || status=$?
"$python" -m pytest -m "$parts" -n 2 --dist loadgroup || status=$?
exit "$status"
