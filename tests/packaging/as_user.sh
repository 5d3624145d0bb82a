#!/bin/sh
# usage: as_user.sh wheel|tarball|programs PACKAGE CHECKPOINT. What a user does without root:
# installs PACKAGE into an empty folder and uses it on CHECKPOINT. Prints what the programs print,
# and the SHA-256 of what they wrote: the same for every package; of a wheel also what Python finds.
# Of `programs` PACKAGE is a folder; of `wheel` the folder of wheels among which pip chooses.
set -eu
kind=$1 package=$2 checkpoint=$3 here=$(dirname "$0")
LC_ALL=C.UTF-8 COLUMNS=80
export LC_ALL COLUMNS
[ "$(id -u)" -ne 0 ] || { echo "as_user.sh: this is root" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

files() { find environment \( -type f -o -type l \) ! -path '*__pycache__*' | sort; }

install() {
  environment/bin/pip install --quiet --no-index --no-cache-dir --disable-pip-version-check \
    --find-links "$package" "$1" >&2
}

case $kind in
  wheel)
    python3 -m venv environment
    install numpy
    files >before
    install shardwise
    programs=$work/environment/bin
    ;;
  tarball)
    tar xzf "$package"
    mv shardwise-*/ "moved elsewhere"
    programs="$work/moved elsewhere/bin"
    ;;
  programs) programs=$package ;;
esac
PATH=$programs:$PATH
cp -r "$checkpoint" ckpt

say() { echo "\$ $*"; "$@" 2>&1 || echo "exit $?"; }
say ckpt-inspect --version
say shardwise inspect ckpt
say ckpt-inspect verify ckpt
say ckpt-convert ckpt made_torch --to torch --verify
say ckpt-convert ckpt made.safetensors --model-only
say reshard ckpt made_pp2 --pp 2 --dp 4
say ckpt-inspect verify made_pp2
say ckpt-inspect diff made_torch made_pp2
say ckpt-inspect hash made_pp2 --logical
find made* -type f | sort | xargs sha256sum
for manual in ckpt-inspect ckpt-inspect-ls ckpt-convert reshard; do
  [ "$kind" = programs ] || [ -s "$programs/../share/man/man1/$manual.1" ]
done

if [ "$kind" = wheel ]; then
  environment/bin/python "$here/use_python.py" ckpt .
  environment/bin/pip uninstall --quiet --yes --disable-pip-version-check shardwise >&2
  files | diff before - >&2
  [ -z "$(find environment -iname '*shardwise*')" ]
fi
