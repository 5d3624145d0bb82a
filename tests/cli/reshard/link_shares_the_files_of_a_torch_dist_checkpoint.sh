cp -r $GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt root
reshard root linked --dp 4 --link
reshard root copied --dp 4 > /dev/null
[ root/iter_0000003/__0_0.distcp -ef linked/iter_0000003/__0_0.distcp ] && echo "one file" || echo "shared blocks"
cmp linked/iter_0000003/common.pt copied/iter_0000003/common.pt && echo "the same common state"
cmp root/iter_0000003/.metadata linked/iter_0000003/.metadata && echo "the same metadata"
diff <(ckpt-inspect hash --logical linked | tail -1) <(ckpt-inspect hash --logical copied | tail -1) && echo "the same state"
reshard $GOLDEN/lw_muon_bf16_torch_dp2/ckpt torch --dp 4 --link; echo "exit $?"
