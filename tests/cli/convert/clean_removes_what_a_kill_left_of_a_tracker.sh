mkdir root
touch root/.latest_checkpointed_iteration.txt.new
source=$GOLDEN/lw_muon_bf16_torch_dp2/ckpt
ckpt-convert "$source" --into root --to torch_dist --clean
ckpt-convert "$source" --into root --to torch_dist --clean
ls -A root
