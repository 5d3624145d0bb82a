# One byte of a master, of a weight, of a pickle and of a zip header: whatever checks see it, it is
# one finding, and readable.
tell() {  # SAMPLE FILE OFFSET BYTE
  rm -rf ckpt
  cp -r "$GOLDEN/$1" ckpt
  chmod -R u+w ckpt
  printf "$4" | dd of="ckpt/iter_0000003/$2" bs=1 seek="$3" conv=notrunc status=none
  ckpt-inspect verify ckpt --quiet
}
tell gpt1l_tiny_torch_dp2 mp_rank_00/layer_wise_optimizer_0.pt 3499 '\377'
tell gpt1l_tiny_torch_dp2 mp_rank_00/model_optim_rng.pt 38866 '\377'
tell gpt1l_tiny_torch_dist_dp2 __0_0.distcp 29479 '\377'
tell gpt1l_tiny_torch_dist_dp2 __0_0.distcp 5441 '\377'
tell gpt1l_tiny_torch_dist_dp2 __0_0.distcp 4734 "'"
