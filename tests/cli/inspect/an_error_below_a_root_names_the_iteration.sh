cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" ckpt
chmod -R u+w ckpt
printf '\377' | dd of=ckpt/iter_0000003/__1_0.distcp bs=1 seek=70000 conv=notrunc status=none
ckpt-convert ckpt made --to torch || echo $?
ckpt-convert ckpt/iter_0000003 made --to torch || echo $?
head -c 100 ckpt/iter_0000003/common.pt > cut && cp cut ckpt/iter_0000003/common.pt
ckpt-inspect ckpt || echo $?
