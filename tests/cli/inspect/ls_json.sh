ckpt-inspect ls "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --json --include "*final_layernorm*" --include "rng*"
