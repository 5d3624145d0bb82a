#!/usr/bin/env bash
# usage: install.sh BUILD_DIR TREE. Installs, then moves the tree: nothing in it may depend on where
# it was made.
set -euo pipefail
build=$1 tree=$2
rm -rf "$tree" "$tree.first"
cmake --install "$build" --prefix "$tree.first" >/dev/null
mv "$tree.first" "$tree"
if grep -rIl --include='*.cmake' --include='*.pc' "$tree.first" "$tree"; then
  echo "these name the prefix that they were installed to" >&2
  exit 1
fi
for link in ckpt-reshard ckpt-step-replay; do
  [ ! -e "$tree/bin/${link#ckpt-}" ] || [ -L "$tree/bin/$link" ] || { echo "no $link" >&2; exit 1; }
done
for program in "$tree"/bin/*; do  # with no environment: nothing tells the loader where to look
  version=$(env -i "$program" --version)
  echo "$version  ($(basename "$program"))"
done
