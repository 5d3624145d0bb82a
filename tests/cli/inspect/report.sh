ckpt-inspect report "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" -o page.html
head -c 15 page.html; echo
ckpt-inspect report "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" -o page.html || echo $?
ckpt-inspect report "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" -o page.html --force --sample 8K
ckpt-inspect report "$GOLDEN/torch_save_zip/zip.pt" -o other.html -q
ls
