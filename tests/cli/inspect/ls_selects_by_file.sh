ckpt-inspect ls "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" --include "*_0.pt:/0/*"
