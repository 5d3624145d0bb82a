for threads in 1 2 5; do
  ckpt-inspect hash -q -j $threads "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
done
