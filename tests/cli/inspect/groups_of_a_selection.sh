# KEY and --include name parameters, as in show; their groups are shown alone.
ckpt="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect groups "$ckpt" '*linear_fc1*'
ckpt-inspect groups "$ckpt" --include '*layernorm*' --exclude '*layers.0*' --exclude '*bias'
ckpt-inspect groups "$ckpt" decoder/final_layernorm/weight --json | grep -E '"(key|rank|group)"'
ckpt-inspect groups "$ckpt" decoder.final_layernorm.weigth || echo $?
ckpt-inspect groups "$ckpt" '*nothing*' || echo $?
