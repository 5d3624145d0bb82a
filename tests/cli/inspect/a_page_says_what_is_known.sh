# Of safetensors what the header and the files beside say; of state without names its keys.
tar -xJf "$GOLDEN/trainers.tar.xz" ./hf_trainer/checkpoint-2
cd hf_trainer/checkpoint-2
ckpt-inspect . | grep -E '^format'
ckpt-inspect model.safetensors | grep -E '^format'
ckpt-convert "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" ours --to safetensors --model-only -q
ckpt-inspect ours | grep -E '^format'
ckpt-inspect optimizer.pt | sed -n '/^LARGEST/,/^$/p'
ckpt-inspect optimizer.pt --json | sed -n '/"largest"/,/}/p'
