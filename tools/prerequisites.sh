#!/bin/sh
# Checks what the build and Spark need, and names what is missing or too old with its packages; then ends with status 1.
# Run it, or source it: then `python` is the Python to use, and CC and CXX are set where the defaults would not work.
# PYTHON, JAVA_HOME and CXX choose a Python, a JDK and a compiler; nothing else is tried then.

missing=

# lacks WHAT FOUND DEBIAN-PACKAGES MACOS-COMMAND
lacks() {
    [ -n "$missing" ] || echo "Something is missing on this machine:" >&2
    missing=yes
    printf '  %s: found %s\n      Debian, Ubuntu: apt-get install %s\n      macOS:          %s\n' "$@" >&2
}

# The first Python that has everything; else one that is new enough; else what there is.
probe='
import importlib.util, os, sys, sysconfig
venv = bool(importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"))
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
state = "old" if sys.version_info < (3, 10) else "novenv" if not venv else "noheaders" if not headers else "ok"
print("%s %d.%d.%d %s" % ((state,) + tuple(sys.version_info[:3]) + (sys.executable,)))
'
python=
python_found=none
python_state=none
if [ -n "${PYTHON:-}" ]; then
    set -- "$PYTHON"
else
    set -- python3 python3.13 python3.12 python3.11 python3.14 python3.10
fi
for candidate in "$@"; do
    found=$("$candidate" -c "$probe" 2>/dev/null) || continue
    state=${found%% *}
    found=${found#* }
    case $python_state-$state in
    none-* | old-* | *-ok)
        python_state=$state
        python=${found#* }
        python_version=${found%% *}
        python_found="Python $python_version ($python)"
        ;;
    esac
    if [ "$state" = ok ]; then break; fi
done
case $python_state in
ok) ;;
novenv) lacks "Python's venv and ensurepip" "$python_found without them" \
    "python3-venv (or python${python_version%.*}-venv)" "brew install python@3.13" ;;
noheaders) lacks "Python's C headers (Python.h)" "$python_found without them" \
    "python3-dev (or python${python_version%.*}-dev)" "brew install python@3.13" ;;
*) lacks "Python 3.10 or newer" "$python_found" "python3 python3-venv python3-dev" "brew install python@3.13" ;;
esac

# As Spark looks for it: JAVA_HOME first, and only without it the PATH.
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
java_version=$("$java" -version 2>&1 | sed -n 's/.*version "\([^"]*\)".*/\1/p')
java_major=${java_version#1.}
java_major=${java_major%%[!0-9]*}
if [ "${java_major:-0}" -lt 17 ]; then
    if [ -n "$java_version" ]; then
        java_found="Java $java_version ($(command -v "$java"))"
    else
        java_found="none${JAVA_HOME:+ in JAVA_HOME, $JAVA_HOME}"
    fi
    # shellcheck disable=SC2016
    lacks "Java 17 or newer" "$java_found" "openjdk-17-jre-headless (or openjdk-21-jre-headless)" \
        'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"'
fi

compiler=
compiler_found=none
if [ -n "${CXX:-}" ]; then
    set -- "$CXX"
    compiler_found="CXX=$CXX, which does not compile C++17"
else
    set -- g++ clang++
fi
for candidate in "$@"; do
    # Not quoted: CXX may hold several words, as in "ccache g++".
    if echo '#include <string_view>' | $candidate -std=c++17 -fsyntax-only -x c++ - >/dev/null 2>&1; then
        compiler=$candidate
        break
    fi
    if command -v "$candidate" >/dev/null 2>&1; then
        compiler_found="$candidate, which does not compile C++17"
    fi
done
[ -n "$compiler" ] || lacks "a C++17 compiler, g++ or clang++" "$compiler_found" "g++" "xcode-select --install"

[ -z "$missing" ] || exit 1

# Python remembers the compiler that it was built with, and that one need not be here.
if [ "$compiler" = clang++ ] && [ -z "${CXX:-}" ]; then
    export CC=clang CXX=clang++
fi
