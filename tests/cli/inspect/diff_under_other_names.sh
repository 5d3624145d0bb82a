# What only one side has in front of its names is hinted at, taken away, and then counted once.
python3 - <<'END'
import json, struct
def write(path, values, front):
    header, data = {}, b""
    for name, value in values.items():
        bytes_ = struct.pack("<2f", value, 2 * value)
        header[front + name] = {"dtype": "F32", "shape": [2], "data_offsets": [len(data), len(data) + 8]}
        data += bytes_
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
values = {f"layers.{i}.w": 1.0 + i for i in range(3)}
write("a.safetensors", values, "")
write("b.safetensors", values, "module.")
write("c.safetensors", {**values, "layers.1.w": 2.5}, "module.")
END
ckpt-inspect diff a.safetensors b.safetensors; echo "exit $?"
ckpt-inspect diff a.safetensors b.safetensors --rename module.=; echo "exit $?"
ckpt-inspect diff b.safetensors a.safetensors --rename layers=module.layers -q; echo "exit $?"
ckpt-inspect diff a.safetensors c.safetensors --rename module.=; echo "exit $?"
ckpt-inspect diff a.safetensors c.safetensors --rename encoder.=x; echo "exit $?"
