cp -r "$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" ckpt
chmod -R u+w ckpt
ckpt-inspect ls ckpt > whole
rm ckpt/iter_0000003/__1_0.distcp
ckpt-inspect ls ckpt > listed
cmp whole listed
ckpt-inspect ls ckpt --json --include "decoder.final_layernorm.weight" -q
ckpt-inspect tree ckpt --depth 0 --json -q
ckpt-inspect ckpt --json -q | grep -A 2 missing_files
ckpt-inspect show ckpt decoder.final_layernorm.weight || echo $?
ckpt-inspect verify ckpt || echo $?
ckpt-convert ckpt made --to torch || echo $?
test ! -e made
