# Sourced by tools/run and tools/test, never run by itself. Goes to the root of the repository and
# offers `prepare_environment`, after which $python is that of .venv. Needs bash 3.2 and Python 3.11.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 3
python="$PWD/.venv/bin/python"

# Ends the script as "this machine cannot do it", with one line that says why.
fail() {
  printf 'tools/%s: %s\n' "${0##*/}" "$1" >&2
  exit 3
}

# Runs a command and shows what it printed only where it fails.
quietly() {
  local what="$1" output
  shift
  output="$("$@" 2>&1)" && return
  printf '%s\n' "$output" >&2
  fail "could not $what; the reason is above"
}

# Prints the first Python that will do; $PYTHON, where set, is the only candidate.
find_python() {
  local candidates=(python3 python3.14 python3.13 python3.12 python3.11 python) candidate
  [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
  for candidate in "${candidates[@]}"; do
    if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      command -v "$candidate"
      return
    fi
  done
  fail "needs Python 3.11 or newer with its venv module, found none as: ${candidates[*]}; install one or name it, PYTHON=/path/to/python3 tools/${0##*/}"
}

# What the content of .venv depends on. A copied or moved repository is set up again.
environment_inputs() {
  pwd
  cat pyproject.toml constraints.txt
}

# Makes .venv with the pinned packages of graphplan and the extra $1, unless it is there and current.
prepare_environment() {
  local extra="${1:-}" found
  local stamp=".venv/installed${extra:+-$extra}"
  if [ -x "$python" ] && environment_inputs | cmp -s - "$stamp"; then
    return
  fi
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    found="$(find_python)" || exit
    quietly "create .venv with $found" "$found" -m venv --clear .venv
  fi
  printf 'tools/%s: installing into .venv (takes a minute, once)\n' "${0##*/}" >&2
  # pip reads pins for build backends from the environment alone, under either name by its version,
  # and splits the value at spaces: so the path is relative.
  export PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
  quietly "install the packages of constraints.txt" \
    "$python" -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}"
  environment_inputs >"$stamp"
}
