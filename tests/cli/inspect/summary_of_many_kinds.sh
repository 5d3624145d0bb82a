# Files without iteration, ranks and parameter groups say nothing of them.
cd "$GOLDEN"
ckpt-inspect torch_save_zip/zip.pt
ckpt-inspect lw_muon_bf16_torch_dp2/expected/state.safetensors
