#!/bin/sh
# Installs the browser in which tests look at a report, where it is missing and that is possible; says so where it is not.
# Never fails: without a browser those tests are skipped.

[ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ] && exit 0

get="apt-get install chromium chromium-driver (Debian)"
if command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    echo "Installing chromium and chromium-driver, in which the tests look at a report"
    install="apt-get install -y --no-install-recommends chromium chromium-driver"
    export DEBIAN_FRONTEND=noninteractive
    $install >/dev/null 2>&1 || { apt-get update >/dev/null 2>&1 && $install >/dev/null 2>&1; }
    [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ] && exit 0
fi
echo "No browser: the tests that look at a report in one are skipped; $get"
exit 0
