# What is missing shows on the page, in both formats.
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" torch
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" dist
chmod -R u+w torch dist
rm torch/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt
ckpt-inspect torch | head -8
rm dist/iter_0000003/__1_0.distcp
ckpt-inspect dist | grep status
ckpt-inspect dist --json | grep -A 3 '"missing_files"\|"status"'
cp "$GOLDEN"/lw_muon_bf16_torch_dist_dp2/ckpt/iter_0000003/__1_0.distcp dist/iter_0000003
rm dist/iter_0000003/metadata.json
ckpt-inspect dist | grep status
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" other
chmod -R u+w other
cp other/iter_0000003/mp_rank_00/layer_wise_optimizer_[01].pt .
cp layer_wise_optimizer_0.pt other/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt
ckpt-inspect other | grep -A 3 status
