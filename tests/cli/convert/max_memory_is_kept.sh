# 8 tensors of 16 MiB, by 8 threads, which take 42 MiB where nothing says how much.
count=8 bytes=$((16 << 20)) layout=
for ((i = 0; i < count; i++)); do
  layout+="\"w$i\":{\"dtype\":\"U8\",\"shape\":[$bytes],\"data_offsets\":[$((i * bytes)),$(((i + 1) * bytes))]},"
done
header="{${layout%,}}"
printf "\\x$(printf %02x $((${#header} % 256)))\\x$(printf %02x $((${#header} / 256)))\\0\\0\\0\\0\\0\\0%s" "$header" > from.safetensors
yes "some content that is not the same everywhere" | head -c $((count * bytes)) >> from.safetensors
cat > peak.py <<'P'
import os, subprocess, sys
limit, *words = sys.argv[1:]
process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
code = os.waitstatus_to_exitcode(status)
print(f"exit {code}, {'at most' if usage.ru_maxrss <= int(limit) << 10 else 'more than'} {limit} MiB")
P
convert() { python3 peak.py $1 ckpt-convert from.safetensors out --to $2 -j 8 "${@:3}"; rm -rf out; }
for limit in 20 28 36; do
  convert $limit torch --max-memory ${limit}M
  convert $limit torch_dist --max-memory ${limit}M --verify
done
ckpt-convert from.safetensors out --to torch --max-memory 4M 2>&1 | sed 's/[0-9]\{7,\}/N/g'
rm from.safetensors peak.py
ls -A
