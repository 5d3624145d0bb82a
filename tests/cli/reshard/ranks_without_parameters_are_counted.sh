counted() { reshard "$@" --dry-run 2>&1 > /dev/null | grep own; echo "exit ${PIPESTATUS[0]}"; }
for ranks in 29 30 64; do
  counted "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" out --dp $ranks
done
counted "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" out --dp 64 --ownership balanced
