# Weights are rounded, what became infinite is counted by key, and the model is found by its name.
python3 - <<'END'
import json, struct, sys
def save(path, **tensors):
    header, data = {}, b""
    for key, values in tensors.items():
        bytes_ = struct.pack(f"<{len(values)}f", *values)
        header[key] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)
save("a.safetensors", w=[1.0, 1e30, -7e4, 3.1415926], norm=[1.0, 2.0])
END
ckpt-convert a.safetensors b.safetensors --to safetensors --dtype float16 --dtype norm=bfloat16
ckpt-inspect show b.safetensors w norm
ckpt-convert b.safetensors c.safetensors --to safetensors --dtype float32 --dtype 'norm=bfloat16' 2>&1
ckpt-convert a.safetensors d.safetensors --to safetensors --dtype float16 --strict 2>&1
ckpt-convert a.safetensors d.safetensors --to safetensors --dtype int8 2>&1
ckpt-convert "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" d --to torch --dtype float32 2>&1
