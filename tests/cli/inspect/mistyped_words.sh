# The nearest known word is proposed; what is unknown is told before what is missing.
try() { echo "== $*"; "$@" 2>&1; echo "exit $?"; }
cp -r $GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt lss
try ckpt-inspect verfy ckpt
try ckpt-inspect lsl
try ckpt-inspect nothing/like/a/command
ckpt-inspect lss > /dev/null && echo "a path that exists is a path"
try ckpt-inspect ls lss --limt 3
try ckpt-inspect ls lss --sort siez
try ckpt-inspect ls --no-progres
try ckpt-inspect ls lss other
try ckpt-inspect latest --frobnicate
try reshard --dpp 4
try reshard lss out --dp 4 --ownership balance
try ckpt-convert lss out --to torch-dist
try ckpt-convert lss out --to torch --into elsewhere
