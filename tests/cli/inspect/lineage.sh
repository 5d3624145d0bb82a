mkdir root
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt/iter_0000003" root/iter_0000003
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003" root/iter_0000006
mkdir root/iter_0000009
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003" root/iter_0000012
rm root/iter_0000012/__1_0.distcp
cp -r "$GOLDEN/lw_muon_bf16_torch_dp4/ckpt/iter_0000003" root/iter_0000015
ckpt-inspect lineage root
ckpt-inspect lineage root --quick
ckpt-inspect lineage root --quick --json
ckpt-inspect lineage root -v 2>/dev/null | head -20
ckpt-inspect lineage "$GOLDEN/torch_save_zip" || echo $?
ckpt-inspect lineage nowhere || echo $?
