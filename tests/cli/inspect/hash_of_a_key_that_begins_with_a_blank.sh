python3 - <<'END'
header = b'{" w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}'
open("m.safetensors", "wb").write(len(header).to_bytes(8, "little") + header + b"abc")
END
ckpt-inspect hash m.safetensors | tee whole
ckpt-inspect hash m.safetensors -c whole
ckpt-inspect hash m.safetensors --rank 0 --world-size 2 > part0
ckpt-inspect hash m.safetensors --rank 1 --world-size 2 > part1
ckpt-inspect hash m.safetensors --finish part0 part1 | cmp - whole && echo the same
