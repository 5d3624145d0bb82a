quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
convert() { quiet ckpt-convert $GOLDEN/torch_save_zip/zip.pt out --to torch_dist "$@"; echo "exit $?"; }
convert --distributed
convert --rank 1
convert --world-size 2
convert --rank 2 --world-size 2
convert --rank 0 --world-size 0
convert --rank 0 --world-size 2 --distributed
RANK=x WORLD_SIZE=2 convert --distributed
convert --finish
ls -A
