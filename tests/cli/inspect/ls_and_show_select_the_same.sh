# A pattern that names nothing stored names tensors of the training state, in both.
ckpt="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect ls "$ckpt" --include '*layers.0*' --exclude '*layers.0.mlp*' --exclude '*bias' > listed
ckpt-inspect show "$ckpt" --stats --include '*layers.0*' --exclude '*layers.0.mlp*' --exclude '*bias' > shown
cut -d ' ' -f 1 shown | diff - <(head -n -1 listed | cut -d ' ' -f 1) && echo same
head -3 listed; tail -1 listed
ckpt-inspect ls "$ckpt" --include '*layers.0.*fc1.bias' --include '*final*bias' --json | grep -E '"(key|tensors)"'
ckpt-inspect show "$ckpt" --include '*layers.1.*fc1.bias' --include '*final*bias' --json | grep '"key"'
ckpt-inspect ls "$ckpt" --include '*layers.7*' --include '*layers.1.*proj.bias'
ckpt-inspect show "$ckpt" --stats --include '*layers.7*' || echo $?
