#!/bin/sh
# Installs Chromium, the browser in which tests/ look at a report, where it is missing and can be installed.
# DLEDGER_BROWSER_TESTS=0 goes without: those tests are skipped, and say so. Never fails.

[ "${DLEDGER_BROWSER_TESTS:-1}" != 0 ] || exit 0
[ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ] && exit 0

if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "Installing two system packages as root, with apt-get: chromium and chromium-driver."
    echo "Why: tests open the page of 'dledger report' in a browser. To go without: DLEDGER_BROWSER_TESTS=0 make test"
    install="apt-get install -y --no-install-recommends chromium chromium-driver"
    export DEBIAN_FRONTEND=noninteractive
    $install >/dev/null 2>&1 || { apt-get update >/dev/null 2>&1 && $install >/dev/null 2>&1; }
    [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ] && exit 0
    echo "The packages could not be installed."
fi
echo "No Chromium: the tests that open a report in a browser are skipped."
echo "To run them on Debian: apt-get install chromium chromium-driver"
exit 0
