quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt root
find root -type f -exec sha256sum {} + | sort > before
try() { quiet ckpt-convert "$@" --to torch_dist; echo "exit $?"; }
try root root
try root root/inside
try root root/iter_0000003/inside --force
try root/iter_0000003 root --force
ln -s root other_name
try root other_name --force
try root other_name/inside
find root -type f -exec sha256sum {} + | sort | diff before - && echo untouched
