quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
ckpt-convert "$from" whole --to torch_dist > /dev/null
convert() { quiet ckpt-convert "$from" out --to torch_dist "$@"; echo "exit $?"; }
convert --rank 0 --world-size 2
damaged=$(find .out.shardwise-partial/content -name '*.distcp')
printf X | dd of="$damaged" bs=1 seek=5000 conv=notrunc status=none
convert --rank 0 --world-size 2
convert --rank 0 --world-size 2
convert --rank 1 --world-size 2
diff -r whole out && echo equal
