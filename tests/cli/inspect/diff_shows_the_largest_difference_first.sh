two="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
four="$GOLDEN/lw_muon_bf16_torch_dp4/ckpt"
norms() { sed -n "s|^\(optimizer[^ ]*\)  *\([^ ]*\) .*|\1 \2|p"; }
echo "largest first:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 | norms
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 --sort difference | norms | head -n 1
echo "by key:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --limit 4 --sort key | norms
first() { python3 -c 'import json, sys; found = json.load(sys.stdin)["tensors"]["different"][0]
print(found["key"], found["value"]["norm"] / found["value"]["norm_a"])'; }
echo "as JSON:"
ckpt-inspect diff "$two" "$four" --include '*momentum*' --json | first
ckpt-inspect diff "$two" "$four" --include '*momentum*' --json --sort difference | first
