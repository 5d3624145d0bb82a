"""usage: use_python.py CHECKPOINT FOLDER. Uses the Python module as its users do, with numpy alone,
and prints what it finds: the same for every build. FOLDER is where it writes."""
import hashlib
import sys

import numpy as np
import shardwise as sw

checkpoint, folder = sys.argv[1:]
NAME = "decoder.layers.0.mlp.linear_fc1.weight"


def sha256(data):
    return hashlib.sha256(data).hexdigest()


with sw.open(checkpoint) as c:
    print(sw.__version__, c.format, c.iteration, len(c), c.args["num_layers"])
    print(sorted(c.summary()))
    t = c[NAME]
    part = bytearray(t[2:4].nbytes)
    t[2:4].read_into(part)
    print(t.dtype, t.shape, t.nbytes, len(t.chunks), sha256(part))
    p = c.params[NAME]
    print(p.group["rule"], p.group["lr"], list(p.states))
    for tensor in p.master, *p.states.values():
        array = np.asarray(tensor)
        print(array.dtype, array.shape, array[0, :3].tolist(), sha256(array.tobytes()))
    print([(group["rule"], len(group["params"])) for group in c.optimizer.groups])
    print(sorted(c.rank(dp=1).state_dict(framework="lazy")))
    try:
        c["decoder.layers.7.mlp.linear_fc1.weight"]
    except KeyError as error:
        print(type(error).__name__, error.key)

with open(folder + "/no_checkpoint.pt", "wb") as file:
    file.write(b"PK\3\4 and nothing that belongs there")
try:
    sw.open(folder + "/no_checkpoint.pt")
except sw.CorruptError as error:
    print(error, error.file, error.offset)

steps = []
sw.convert(checkpoint, folder + "/python_torch", to="torch",
           progress=lambda step, done, total: steps.append((done, total)))
print(steps[-1][0] == steps[-1][1] > 0)
sw.convert(checkpoint, folder + "/python.safetensors", model_only=True)
with open(folder + "/python.safetensors", "rb") as file:
    print(sha256(file.read()))
sw.reshard(checkpoint, folder + "/python_dp4", dp=4)
print(sw.verify(folder + "/python_dp4").ok, sw.diff(checkpoint, folder + "/python_dp4").ok,
      sw.hash(folder + "/python_dp4", logical=True).digest)
for row in sw.stats(checkpoint, "*linear_fc1.weight"):
    print(sorted(row.items()))
try:
    sw.convert(checkpoint, folder + "/python.safetensors", model_only=True)
except sw.AlreadyExistsError as error:
    print(error)
