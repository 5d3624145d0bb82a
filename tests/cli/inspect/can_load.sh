# A model that asks for what a file has, for a tensor that it has not, for another shape and type.
model="$GOLDEN/torch_save_zip/zip_nocrc.pt"
ckpt-inspect ls "$model" --json >own.json
ckpt-inspect can-load "$model" --expect-keys own.json || echo $?
sed -e 's|"/emb.weight"|"/embed.weight"|; 0,/"float32"/s//"bfloat16"/' own.json >other.json
ckpt-inspect can-load "$model" --expect-keys other.json || echo $?
ckpt-inspect can-load "$model" --expect-keys other.json --no-strict || echo $?
ckpt-inspect can-load "$model" --expect-keys other.json --rename emb=embed --accept-rounding --quiet || echo $?
ckpt-inspect can-load "$GOLDEN/torch_save_zip/zip.pt" --expect-keys own.json --limit 1 || echo $?
ckpt-inspect can-load "$GOLDEN/torch_save_zip/zip.pt" --expect-keys own.json --below nodel || echo $?
ckpt-inspect can-load "$model" --expect-keys "$model" || echo $?
ckpt-inspect can-load "$model" --expect-keys own.json --loader dcp || echo $?
ckpt-inspect can-load "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" --expect-keys own.json || echo $?
echo '{"tensors": [{"key": "a", "dtype": "float32", "shape": [1]}, {"key": "a", "dtype": "float32", "shape": [1]}]}' >twice.json
ckpt-inspect can-load "$model" --expect-keys twice.json || echo $?
