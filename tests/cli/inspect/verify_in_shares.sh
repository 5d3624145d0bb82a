cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" ckpt
chmod -R u+w ckpt
printf '\377' | dd of=ckpt/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt bs=1 seek=20000 conv=notrunc status=none
for rank in 0 1 2; do ckpt-inspect verify ckpt --rank $rank --world-size 3 || echo $?; done
ckpt-inspect verify ckpt --rank 1
