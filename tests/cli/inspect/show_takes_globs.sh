ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder.layers.mlp.*norm*' '*/@nothing' | head -3
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder/layers/*/linear_q*' --json | grep '"key"'
