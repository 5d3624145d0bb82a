ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder.layers.mlp.*norm*' '*/@nothing' | head -3
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder/layers/*/linear_q*' --json | grep '"key"'
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" --include 'decoder.layers.mlp.*' --exclude '*norm*' --exclude '*_extra_state*' --json | grep '"key"'
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder.layers.mlp.*' --include '*fc1.bias' | head -1
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" 'decoder.layers.mlp.*' --exclude '*' || echo $?
ckpt-inspect show "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" || echo $?
