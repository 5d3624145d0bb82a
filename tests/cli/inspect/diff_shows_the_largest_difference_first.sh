two="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
four="$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"
max_rel() { sed -n "s|^value  \([^ ]*\) .*\(max rel [^,]*\),.*|\1 \2|p"; }
echo "largest first:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 | max_rel
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 --sort difference | max_rel | head -n 1
echo "by key:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 --sort key | max_rel
first() { python3 -c 'import json, sys; found = json.load(sys.stdin)["tensors"]["different"][0]
print(found["key"], found["value"]["max_rel"])'; }
echo "as JSON:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --json | first
ckpt-inspect diff "$two" "$four" --include '*momentum*' --json --sort difference | first
