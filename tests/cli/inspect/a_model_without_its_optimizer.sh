source_of_model="$GOLDEN/no_save_optim_torch_dist_dp2/ckpt"
ckpt-inspect "$source_of_model"
ckpt-inspect groups "$source_of_model" || echo $?
ckpt-inspect lineage "$source_of_model"
for container in torch torch_dist; do
  ckpt-convert "$source_of_model" "$container" --to "$container"
  ckpt-inspect diff "$source_of_model" "$container"
  ckpt-convert "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" "of_$container" --to "$container" --model-only
  ckpt-inspect lineage "of_$container"
done
ckpt-convert "$source_of_model" again --to torch --model-only
reshard "$source_of_model" pp2 --pp 2
ckpt-convert "$source_of_model" flat --to torch --optimizer-sharding flat_file || echo $?
ckpt-convert "$source_of_model" april --to torch_dist --target-megatron 2026-04
ls torch_dist/* april/*
step-replay run "$source_of_model" --grads "$GOLDEN/lw_muon_bf16_torch_dp2/expected/init_and_grads.safetensors" || echo $?
ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" mended --repair || echo $?
