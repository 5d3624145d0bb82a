# What no table explains is refused by name, and what asks for a table without need, too.
cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt ckpt
cp $GOLDEN/torch_save_zip/zip.pt .
refused() { echo "# $*"; "$@" --quiet 2>&1; echo "exit $?"; }
refused ckpt-convert ckpt out --to huggingface
refused ckpt-convert ckpt out --to huggingface --names llama
refused ckpt-convert ckpt out --to huggingface --names qwen9
echo '{"schema_version": 1, "base": "llama", "requires": {"activation": "1 +"}}' > own.json
refused ckpt-convert ckpt out --to huggingface --names own.json
echo '{"schema_version": 1, "base": "lama"}' > own.json
refused ckpt-convert ckpt out --to huggingface --names own.json
refused ckpt-convert ckpt out --to huggingface --into root
refused ckpt-convert ckpt out --to torch --names llama
refused ckpt-convert ckpt out --to safetensors --shard-size 1G
refused ckpt-convert zip.pt out --to huggingface
refused ckpt-convert names check ckpt zip.pt --names llama
refused ckpt-convert names chek ckpt zip.pt
refused ckpt-convert names check ckpt
ls
