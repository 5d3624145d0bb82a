# Whether Megatron goes on: own flags, other sizes, other arguments, in both containers.
dist="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" ranks="$GOLDEN/do_adam_bf16_torch_dp2/ckpt"
ckpt-inspect can-load "$dist" --target-megatron 2026-04 || echo $?
ckpt-inspect can-load "$dist" --target-megatron 2026-04 --tp 2 --dp 3 || echo $?
ckpt-inspect can-load "$ranks" --target-megatron 2026-04 --tp 2 || echo $?
ckpt-inspect can-load "$ranks" --target-megatron 0.16 --arg lr=0.5 --arg adam_eps=1e-6 || echo $?
ckpt-inspect can-load "$ranks" --target-megatron 0.16 --arg adam-eps=1e-6 || echo $?
ckpt-inspect can-load "$dist" --target-megatron 2026-04 --arg disable_bias_linear || echo $?
ckpt-inspect can-load "$dist" --target-megatron 2026-04 --arg no_such || echo $?
ckpt-inspect can-load "$dist" --target-megatron 2026-04 --tp 3 || echo $?
ckpt-inspect can-load "$dist" --tp 2 || echo $?
ckpt-inspect can-load "$dist" --target-megatron 2025 || echo $?
ckpt-inspect can-load "$dist" --target-megatron 0.16 --expect-keys none.json || echo $?
ckpt-inspect can-load "$GOLDEN/torch_save_zip/zip.pt" --target-megatron 0.16 || echo $?
mkdir root && cp -r "$dist/iter_0000003" root/
ckpt-inspect can-load root --target-megatron 0.16 || echo $?
