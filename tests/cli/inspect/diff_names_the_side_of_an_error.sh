mkdir bad
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" bad/ckpt
printf 'x' > bad/ckpt/iter_0000003/.metadata
ckpt-inspect diff "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" bad/ckpt/ || echo $?
head -c 1000 "$GOLDEN/torch_save_zip/zip.pt" > bad/zip.pt
ckpt-inspect diff "$GOLDEN/torch_save_zip/zip.pt" bad/zip.pt || echo $?
ckpt-inspect diff nowhere bad/ckpt || echo $?
rm -r bad/ckpt/iter_0000003 bad/zip.pt
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" bad/torch
rm bad/torch/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt
ckpt-inspect diff "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" bad/torch || echo $?
