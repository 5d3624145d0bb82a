# A typo, a folder around the checkpoint, a part of it, an address: which path is meant.
cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" ckpt
chmod -R u+w ckpt
step=ckpt/iter_0000003
refused() { echo "# $*"; ckpt-inspect "$@" 2>&1 > /dev/null; echo "exit $?"; }
refused ckptt
refused ckpt/iter_000003
refused kcpt/iter_0000003
refused "$step/.metadata"
refused "$step/__0_0.distcp"
refused "$step/metadata.json"
refused ckpt/latest_checkpointed_iteration.txt
refused gs://bucket/ckpt
refused hf://org/model
echo "--- --iteration"
refused "$step" --iteration 3
refused "$step" --iteration 4
refused ckpt --iteration 4
refused "$step/common.pt" --iteration 3
echo "--- no tracker"
rm ckpt/latest_checkpointed_iteration.txt
refused ckpt
refused ckpt --iteration 3
cp -r "$step" ckpt/iter_0000012
refused ckpt
mkdir -p nemo/context && mv ckpt/iter_0000012 nemo/weights
refused nemo
refused nemo --iteration 3
refused nemo/weights --iteration 3
mkdir single && cp "$step/common.pt" single/model.pt
refused single
mkdir -p actor/model actor/optimizer && cp -r nemo/weights actor/model/dist_ckpt
refused actor
cp -r nemo/weights actor/optimizer/dist_ckpt
refused actor
echo "--- parts without .metadata"
ckpt-inspect ls "$step/common.pt" 2>&1 > /dev/null
rm "$step/.metadata"
refused "$step"
refused "$step/__0_0.distcp"
refused ckpt
mkdir ranks && cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt/iter_0000003" ranks/iter_0000003
refused ranks/iter_0000003/mp_rank_00
