quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
from="$GOLDEN/lw_muon_bf16_torch_dp2/ckpt"
convert() { quiet ckpt-convert "$from" out --to torch_dist "$@"; echo "exit $?"; }
convert --rank 0 --world-size 2
convert
convert --resume
convert --rank 1 --world-size 3
convert --finish
convert --clean
convert --clean
ls -A
