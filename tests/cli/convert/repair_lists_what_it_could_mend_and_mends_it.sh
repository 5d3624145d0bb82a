# Without a kind nothing is written; what is sound stays as it is.
cp -r $GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt ckpt
cp -r ckpt broken
rm broken/iter_0000003/common.pt
ckpt-convert ckpt --repair
ckpt-convert broken --repair --like ckpt
ckpt-convert broken new --to torch_dist --repair common-state
ckpt-convert broken new --to torch_dist --repair common-state,bucket-shift --like ckpt
ckpt-inspect diff ckpt new
ckpt-convert broken again --to torch --repair common-states
ckpt-convert ckpt again --to torch --accept-loss --like broken
ckpt-convert ckpt again
ls
