# A model that Megatron-Core 0.19 saved without its optimizer, and another filing of a trained one.
cp -r $GOLDEN/no_save_optim_torch_dist_dp2/ckpt ckpt
cp -r $GOLDEN/runs/core018_dp_reshardable_tp2dp2/ckpt trained
ckpt-convert ckpt hf --to huggingface --verify
sed -s "1d;\$d" hf/config.json hf/generation_config.json
ckpt-inspect ls hf
ckpt-convert names check ckpt hf
ckpt-convert trained hf2 --to huggingface --weights master --shard-size 8K
ls hf2
ckpt-convert ckpt hf3 --to huggingface --dry-run | sed "s/, about .*//"
ls -A
