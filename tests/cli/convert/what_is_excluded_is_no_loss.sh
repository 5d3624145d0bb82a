# One line says how much was left out on request; not carried is what could not be.
cp $GOLDEN/torch_save_zip/zip.pt .
keys() { python3 -c 'import json, sys; report = json.load(sys.stdin)
print(report["left_out"], report.get("carried"), report["proven"])
for lost in report["not_carried"]: print(lost["what"], "|", lost["reason"])'; }
ckpt-convert zip.pt a --to torch_dist --include 'model.*'
ckpt-convert zip.pt b --to torch_dist --exclude 'model*' --exclude 'optimizer*' --exclude 'module*'
ckpt-convert zip.pt c --to torch_dist --exclude 'optimizer.state.1.*' --quiet
ckpt-convert zip.pt d --to torch_dist --exclude 'optimizer.*' --dry-run --json | keys
cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt ckpt
ckpt-convert ckpt model.safetensors --to safetensors --include 'decoder.*'
ckpt-convert ckpt all.safetensors --to safetensors --exclude 'optimizer.*' --exclude args --verify --json | keys
