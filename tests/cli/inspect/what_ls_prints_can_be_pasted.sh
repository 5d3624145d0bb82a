from="$GOLDEN/torch_save_zip/zip.pt"
ckpt-inspect ls "$from" --json | python3 -c '
import json, sys
document = json.load(sys.stdin)
print(*(entry["key"] for list in ("tensors", "objects") for entry in document[list]), sep="\n")' > keys
ckpt-inspect ls "$from" -q | sed 1d | sed -E 's/ {2,}.*//' > printed
wc -l < printed
while IFS= read -r key; do ckpt-inspect show "$from" "$key" > shown || echo "$key"; done < printed
while IFS= read -r key; do ckpt-inspect ls "$from" -q --include "$key" | sed 1d | wc -l; done < printed | sort | uniq -c
