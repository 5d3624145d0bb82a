quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt root && rm -r root/iter_0000003
add() { quiet ckpt-convert $GOLDEN/lw_muon_bf16_torch_dp2/ckpt --into "$@" --to torch_dist; echo "exit $?"; }
printf 2 > root/latest_checkpointed_iteration.txt
add root
cat root/latest_checkpointed_iteration.txt; echo
add root
printf 7 > root/latest_checkpointed_iteration.txt
add root --force
cat root/latest_checkpointed_iteration.txt; echo
add nowhere
quiet ckpt-convert $GOLDEN/torch_save_zip/zip.pt --into root --to torch_dist; echo "exit $?"
ls -A root
