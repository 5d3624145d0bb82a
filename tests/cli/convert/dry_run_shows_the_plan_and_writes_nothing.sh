# What --dry-run says is what the run then writes: names, sizes, sum, and what is not carried.
cat > compare.py <<'END'
import json, os, sys
plan, done = json.load(open("plan.json")), json.load(open("done.json"))
destination = os.path.join("place", plan["destination"])
found = {}
if os.path.isfile(destination):
    found[""] = os.stat(destination).st_size
for folder, _, names in os.walk(destination):
    for name in names:
        path = os.path.join(folder, name)
        found[os.path.relpath(path, destination)] = os.stat(path).st_size
planned = {file["path"]: file["bytes"] for file in plan["files"]}
facts = {
    "outcome": plan["outcome"] == "planned" and plan["dry_run"] and done["outcome"] == "published",
    "files and sizes": planned == found and len(planned) == len(plan["files"]),
    "sum": plan["total_bytes"] == sum(found.values()) == done["total_bytes"],
    "peak memory": plan["peak_memory_bytes"] > 0 and "peak_memory_bytes" not in done,
    "the rest": all(plan[name] == done[name] for name in done if name not in ("dry_run", "outcome", "verified_bytes", "carried", "proven", "conservation")),
}
wrong = [name for name, holds in facts.items() if not holds]
print("the plan is what was done" if not wrong else f"not as planned: {wrong}\n{plan}\n{done}\n{found}")
END
mkdir place
cp $GOLDEN/torch_save_zip/zip.pt place && cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt place/torch && cp -r $GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt place/torch_dist
listing() { find place -printf '%p %i %s %T@ %C@\n' | sort; }
plan() {
  echo "== $*"
  listing > before
  (cd place && "$@" --dry-run) > plan.text; echo "exit $?"
  (cd place && "$@" --dry-run --json) > plan.json || cat plan.json
  listing | diff before - && echo "nothing was written"
  sed 's/about [0-9.]* [KMG]iB of memory/about SOME of memory/' plan.text
  (cd place && "$@" --json) > done.json || cat done.json
  python3 compare.py
}
plan ckpt-convert zip.pt model.safetensors --to safetensors
plan ckpt-convert zip.pt model --to torch_dist
plan ckpt-convert torch out_torch_dist --to torch_dist
plan ckpt-convert torch_dist out_torch --to torch
plan reshard torch out_torch_dp4 --dp 4
plan reshard torch_dist out_torch_dist_dp4 --dp 4
plan ckpt-convert torch out_model.safetensors --to safetensors --exclude 'optimizer*'
