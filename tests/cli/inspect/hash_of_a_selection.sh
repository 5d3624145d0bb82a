from="$GOLDEN/torch_save_zip/zip.pt"
ckpt-inspect hash "$from" --include 'module_sd.*' --exclude '*running*' > record
ckpt-inspect hash "$from" --include 'module_sd.*' --include '*nothing*' | tail -1
cat record
ckpt-inspect hash "$from" --include 'module_sd.*' --exclude '*running*' --quiet
ckpt-inspect hash "$from" --include 'module_sd.*' --exclude '*running*' --json > record.json
grep -E '"(digest|selection)"' record.json
for name in record record.json; do
  ckpt-inspect hash "$from" --include 'module_sd.*' --exclude '*running*' -c $name
  ckpt-inspect hash "$from" -c $name || echo $?
done
ckpt-inspect hash "$from" > whole
ckpt-inspect hash "$from" --include 'module_sd.*' -c whole || echo $?
ckpt-inspect hash "$from" --include '*nothing*' || echo $?
for checkpoint in "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"; do
  ckpt-inspect hash "$checkpoint" --logical --include '*.linear_fc1.weight' | tail -1
done
