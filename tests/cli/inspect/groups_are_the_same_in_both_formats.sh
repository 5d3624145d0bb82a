ckpt-inspect groups "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" > torch
ckpt-inspect groups "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" > torch_dist
diff torch torch_dist && echo same
