# An apostrophe stays one, also in a record of hashes, whichever version wrote it.
header='{"it'"'"'s":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
{ printf "\\x$(printf %x ${#header})\0\0\0\0\0\0\0"; printf '%sx' "$header"; } > "it's.safetensors"
ckpt-inspect ls "it's.safetensors"
ckpt-inspect ls "its" 2>&1
ckpt-inspect hash "it's.safetensors" > now.txt
sed "s/it\\\\'s/it\\\\x27s/" now.txt > before.txt
grep -ho "it.*" now.txt before.txt
ckpt-inspect hash "it's.safetensors" -c now.txt
ckpt-inspect hash "it's.safetensors" -c before.txt
