cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" ckpt
chmod -R u+w ckpt
folder=ckpt/iter_0000003/mp_rank_00
printf '\377' | dd of=$folder/layer_wise_optimizer_1.pt bs=1 seek=20000 conv=notrunc status=none
cp $folder/layer_wise_optimizer_0.pt $folder/layer_wise_optimizer_2.pt
echo notes > $folder/notes.txt
ckpt-inspect verify ckpt || echo $?
ckpt-inspect verify ckpt --quiet || echo $?
head -c 5000 $folder/model_optim_rng.pt > cut
cp cut $folder/model_optim_rng.pt
ckpt-inspect verify ckpt || echo $?
