#!/usr/bin/env bash
# All tests, quick ones first and on several processes; then in one process those that start Ray, and beside it in another
# those that start an engine, an S3 server or a browser. With arguments they are pytest's, in one process.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
[ $# -eq 0 ] || exec "$python" -m pytest "$@"
others="engine or s3 or demo or browser"
processes=$(nproc)
status=0
"$python" -m pytest -m "not (ray or $others)" -n "$((processes < 4 ? processes : 4))" --dist loadfile || status=$?

said=$(mktemp)
"$python" -m pytest -m "not ray and ($others)" >"$said" 2>&1 &
beside=$!
trap 'kill "$beside" 2>/dev/null; rm -f "$said"' EXIT
"$python" -m pytest -m ray || status=$?
wait "$beside" || status=$?
cat "$said"
exit "$status"
