# Each does what its option does, which stays.
quiet() { "$@" > said; code=$?; grep -E '^(wrote|repair|removed|there)' said; rm said; echo "exit $code"; }
cp -r $GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt ckpt
cp -r ckpt broken
rm broken/iter_0000003/common.pt
ckpt-convert repair broken --like ckpt
quiet ckpt-convert repair broken repaired --like ckpt
ckpt-inspect diff ckpt repaired
quiet ckpt-convert repair ckpt other
echo "== finish, clean"
ckpt-convert ckpt out --to torch --rank 0 --world-size 2 > said; echo "exit $?"
exec 9> .out.shardwise-partial/lock && flock 9  # as one who publishes
ckpt-convert ckpt out --to torch --rank 1 --world-size 2 > said; echo "exit $?"
exec 9>&-
quiet ckpt-convert finish ckpt out --to torch
ckpt-inspect verify -q out && echo sound
ckpt-convert ckpt again --to torch --rank 0 --world-size 2 > said; echo "exit $?"
quiet ckpt-convert clean again
quiet ckpt-convert clean again
ls -A
