cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" other
chmod -R u+w other
key=embedding.word_embeddings.weight
ckpt-inspect show other $key --json > shown
python3 - <<'PYTHON'
import json
chunk = json.load(open("shown"))["entries"][0]["tensor"]["chunks"][0]
with open("other/iter_0000003/" + chunk["file"], "r+b") as file:
    file.seek(chunk["offset_bytes"] + chunk["bytes"] // 2)
    byte = file.read(1)
    file.seek(-1, 1)
    file.write(bytes([byte[0] ^ 1]))
PYTHON
ckpt-inspect verify other --include $key | tail -4; echo ${PIPESTATUS[0]}
ckpt-inspect verify other --exclude $key --exclude '*fp32_param*' | tail -4; echo ${PIPESTATUS[0]}
ckpt-inspect verify other --include 'nothing*' || echo $?
