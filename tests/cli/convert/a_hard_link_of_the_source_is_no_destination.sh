cp $GOLDEN/torch_save_zip/zip.pt . && ln zip.pt hard.pt && mkdir other && ln zip.pt other/hard.pt
sha256sum < zip.pt > before
try() { ckpt-convert "$@" > said; echo "exit $?"; }
try zip.pt hard.pt --to torch
try zip.pt hard.pt --to torch --force
try zip.pt other/hard.pt --to safetensors --force
try hard.pt zip.pt --to torch --force
try zip.pt hard.pt --to torch --force --rank 0 --world-size 2
sha256sum < zip.pt | diff before - && echo untouched
[ zip.pt -ef hard.pt ] && [ zip.pt -ef other/hard.pt ] && echo "one file still"
ls -A . other
