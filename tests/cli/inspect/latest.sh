mkdir ckpt
for number in 3 20 100; do cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt/iter_0000003" ckpt/iter_$(printf %07d $number); done
chmod -R u+w ckpt
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003" ckpt/iter_0000200
chmod -R u+w ckpt
mkdir ckpt/iter_0000300
cp -r ckpt/iter_0000003 ckpt/iter_400  # Megatron looks for iter_0000400
rm ckpt/iter_0000200/metadata.json
rm ckpt/iter_0000100/mp_rank_00/layer_wise_optimizer_1.pt
echo 300 > ckpt/latest_checkpointed_iteration.txt
ckpt-inspect latest ckpt
ckpt-inspect latest ckpt --quiet
ckpt-inspect latest ckpt --json
rm -r ckpt/iter_0000003 ckpt/iter_0000020
ckpt-inspect latest ckpt || echo $?
ckpt-inspect latest nowhere || echo $?
ckpt-inspect latest "$GOLDEN/steps" || echo $?
rm -r ckpt/iter_0000300 ckpt/iter_0000200
ckpt-inspect latest ckpt || echo $?
ckpt-inspect verify --quick ckpt/iter_0000100 | grep ^damage
