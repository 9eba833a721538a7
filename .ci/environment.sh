# shellcheck shell=bash
# Functions for the scripts of this folder that test in environments of their own. They source it at the root of the
# repository, after `make` has created .venv.

# Images of containers often set the last one. Then every process compiles all modules of torch again.
unset PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

LOG=target/logs/install
# Results of this script's tests. `make` counts all files of that folder.
JUNIT=target/junit/$(basename "$0").xml
mkdir -p target/logs target/junit
rm -f "$JUNIT" "${JUNIT%.xml}"-*.xml

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

# in_place FOLDER: makes an environment import the packages of this repository as .venv does. Not part of `environment`,
# whose failure skips tests: this must work.
in_place() {
    local built=(.venv/lib/python3*/site-packages) packages=("$1"/lib/python3*/site-packages)
    cp --recursive "${built[0]}"/*hoplite*.pth "${built[0]}"/hoplite*.dist-info "${packages[0]}" || exit 1
}

# torch_environment: creates target/torch with PyPI's torch (3 GB), unless it is there. Fails like `environment`.
torch_environment() {
    local cudnn=target/torch/lib/python3*/site-packages/nvidia/cudnn/lib
    environment .venv/bin/python target/torch .ci/requirements-torch.txt --no-deps || return 1
    in_place target/torch
    # Without a GPU, nothing loads the parts of cuDNN. The cache has links to them.
    # shellcheck disable=SC2086 # a pattern
    if [ ! -e /dev/nvidiactl ] && [ -e $cudnn/libcudnn_graph.so.9 ]; then
        rm -rf $cudnn/libcudnn_* "$UV_CACHE_DIR"
    fi
}

# skip WHAT [REASON]: reports it as one skipped test.
skip() {
    SKIPPED=$((${SKIPPED:-0} + 1))
    echo "$1 skipped: ${2:-cannot install the packages from PyPI: $(tail -n 1 "$LOG")}"
    echo "0 passed, 0 failed, 1 skipped"
    echo "<testsuite name=\"$(basename "$0")\" tests=\"1\" skipped=\"1\"><testcase name=\"all\"><skipped/></testcase></testsuite>" \
        >"${JUNIT%.xml}-skipped$SKIPPED.xml"
}

# marked MARK: prints the files with tests of a mark. Others may import packages that an environment lacks.
marked() {
    grep --files-with-matches --extended-regexp "mark\.$1" tests/test_*.py packages/*/tests/test_*.py ||
        { echo "no test is marked $1" >&2; exit 1; }
}
