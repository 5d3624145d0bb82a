# 16 tensors of 8 MiB.
count=16 bytes=$((8 << 20)) layout=
for ((i = 0; i < count; i++)); do
  layout+="\"w$i\":{\"dtype\":\"U8\",\"shape\":[$bytes],\"data_offsets\":[$((i * bytes)),$(((i + 1) * bytes))]},"
done
header="{${layout%,}}"
length=${#header}
mkdir place && cd place
printf "\\x$(printf %02x $((length % 256)))\\x$(printf %02x $((length / 256)))\\0\\0\\0\\0\\0\\0%s" "$header" > from.safetensors
yes "some content that is not the same everywhere" | head -c $((count * bytes)) >> from.safetensors
sha256sum < from.safetensors > ../before
convert() { ckpt-convert from.safetensors out --to torch_dist "$@"; }
convert > /dev/null && mv out ../whole
# interrupt SIGNAL CODE OPTION...: the signal comes when there is a staging folder. Where the run was
# faster, it is repeated.
interrupt() {
  local signal=$1 wanted=$2 code= attempt; shift 2
  for attempt in {1..10}; do
    rm -rf out .out.shardwise-partial
    [[ " $* " != *" --force "* ]] || { mkdir out && echo mine > out/file; }
    ckpt-convert from.safetensors out --to torch_dist "$@" > ../said 2> ../warned &
    until [ -d .out.shardwise-partial ] || ! kill -0 $! 2> /dev/null; do :; done
    kill -s $signal $! 2> /dev/null
    wait $!; code=$?
    [ $code != $wanted ] || break
  done
  echo "== $signal${*:+ $*}: exit $code"
  cat ../said ../warned
  ls -A
}
whole() { diff -r ../whole out && echo equal; }
interrupt INT 130
interrupt INT 130 --json
interrupt TERM 143
interrupt TERM 143 --json
interrupt TERM 143 --force
cat out/file && rm -r out
interrupt INT 130 --resume
convert --resume > ../said; whole
# Of several processes one is started again; the others need what is there.
for signal in "INT 130" "TERM 143"; do
  interrupt $signal --rank 0 --world-size 2 --piece-size 8M
  for rank in 0 1; do convert --rank $rank --world-size 2 --piece-size 8M | head -1; done
  whole
done
interrupt TERM 143 --rank 0 --world-size 2
convert --clean
rm -r ../whole
ls -A
sha256sum < from.safetensors | diff ../before - && echo untouched
