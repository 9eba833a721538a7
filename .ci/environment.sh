# shellcheck shell=bash
# Functions for the scripts of this folder that test in environments of their own. They source it at the root of the
# repository, after `make` has created .venv.

LOG=target/logs/install
mkdir -p target/logs

# What it has unpacked is linked into the environments, so it takes no space of its own.
export UV_CACHE_DIR=$PWD/target/uv

# add FOLDER ARGUMENTS: installs into an environment. uv needs a third of pip's time. pip then tries again, because it
# knows the settings of this machine, such as a mirror.
add() {
    local folder=$1
    shift
    timeout 600 .venv/bin/uv pip install --quiet --python "$folder/bin/python" "$@" ||
        timeout 600 .venv/bin/python -m pip --python "$folder/bin/python" --quiet --disable-pip-version-check \
            --no-cache-dir install "$@"
}

# environment PYTHON FOLDER REQUIREMENTS [OPTIONS OF VENV AND OF PIP]: creates an environment, unless it has exactly
# these requirements. Fails, and LOG says why, if PyPI cannot be reached or lacks them.
environment() {
    local python=$1 folder=$2 requirements=$3 venv=() pip=()
    shift 3
    for option in "$@"; do
        if [ "$option" = --system-site-packages ]; then venv+=("$option"); else pip+=("$option"); fi
    done
    LOG=target/logs/install-$(basename "$folder")
    ! cmp --silent "$requirements" "$folder/requirements" || return 0
    # With an environment that has other requirements, its packages leave the cache too.
    [ ! -e "$folder" ] || rm -rf "$folder" "$UV_CACHE_DIR"
    echo "installing $requirements from PyPI into $folder"
    { "$python" -m venv --without-pip "${venv[@]}" "$folder" &&
        add "$folder" "${pip[@]}" --requirement "$requirements"; } >"$LOG" 2>&1 || return 1
    cp "$requirements" "$folder/requirements"
}

# add_wheels FOLDER: installs the wheels of `make wheel`. Not part of `environment`, whose failure skips tests: this
# must work.
add_wheels() {
    local wheels=(target/wheels/*.whl)
    [ -f "${wheels[0]}" ] || { echo "no wheel in target/wheels: run make wheel" >&2; exit 1; }
    add "$1" --force-reinstall --no-deps "${wheels[@]}" || exit 1
}

# skip WHAT [REASON]: reports it as one skipped test.
skip() {
    echo "$1 skipped: ${2:-cannot install the packages from PyPI: $(tail -n 1 "$LOG")}"
    echo "0 passed, 0 failed, 1 skipped"
}

# marked MARK: prints the files with tests of a mark. Others may import packages that an environment lacks.
marked() {
    grep --files-with-matches --extended-regexp "mark\.$1" tests/test_*.py packages/*/tests/test_*.py ||
        { echo "no test is marked $1" >&2; exit 1; }
}
