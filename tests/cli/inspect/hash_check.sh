ckpt-inspect hash "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" > text
ckpt-inspect hash "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" --json > json
ckpt-inspect hash "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" --quiet > digest
for record in text json digest; do ckpt-inspect hash "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" -c $record; done
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" ckpt
chmod -R u+w ckpt
printf '\377' | dd of=ckpt/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt bs=1 seek=20000 conv=notrunc status=none
for record in text json digest; do ckpt-inspect hash ckpt -c $record || echo $?; done
ckpt-inspect hash "$GOLDEN/torch_save_zip/bare_tensor.pt" > bare
ckpt-inspect hash "$GOLDEN/torch_save_zip/empty_list.pt" -c bare --json || echo $?
ckpt-inspect hash ckpt -c "$GOLDEN/steps/README.md" || echo $?
ckpt-inspect hash ckpt -c nowhere || echo $?
# What no hash is about is named.
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" dist
chmod -R u+w dist
ckpt-inspect hash dist > sums
sed -i 's/}/, "by": "us"}/' dist/iter_0000003/metadata.json && touch dist/iter_0000003/notes
ckpt-inspect hash dist -c sums
ckpt-inspect hash dist -c sums --json | sed -n '/not_covered/,/]/p'
