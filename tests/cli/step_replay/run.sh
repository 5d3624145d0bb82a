cd "$GOLDEN/lw_muon_bf16_torch_dp2"
step-replay run ckpt --grads expected --from-init --color never
