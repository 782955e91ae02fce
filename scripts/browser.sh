#!/usr/bin/env bash
# Puts Chromium on a Debian machine where the tests run as root and none is there; elsewhere says what is missing.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "browser: installing Debian's chromium for the tests of the report"
    log=$(mktemp)
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } \
        >"$log" 2>&1 || { tail -n 5 "$log" >&2; echo "browser: chromium could not be installed" >&2; }
    rm -f "$log"
else
    echo "browser: no Chromium here, so the tests of the report in a browser are left out (Debian: apt-get install chromium)" >&2
fi
