quiet() { "$@" > said; code=$?; grep -vE '^(not carried|changed|everything)' said; rm said; return $code; }
quiet ckpt-convert $GOLDEN/lw_muon_bf16_torch_dp2/ckpt out --to torch_dist --verify
