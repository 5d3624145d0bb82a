from="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt" staging=.finished.shardwise-partial
reshard "$from" one --dp 1 --verify -q
for rank in 0 1; do reshard "$from" two --dp 1 --verify -q --rank $rank --world-size 2; done
reshard "$from" finished --dp 1 --verify -q --rank 0 --world-size 2
exec 9> $staging/lock && flock 9  # so that who comes last does not publish
reshard "$from" finished --dp 1 --verify -q --rank 1 --world-size 2
exec 9>&-
reshard "$from" finished --dp 1 --verify -q --finish
cmp one/shardwise-proof.json two/shardwise-proof.json && echo equal
cmp one/shardwise-proof.json finished/shardwise-proof.json && echo equal
digest=$(ckpt-inspect hash --logical -q two)
grep -c "\"logical_digest\": \"$digest\"" two/shardwise-proof.json
ckpt-inspect verify two | tail -1
diff -r one two && diff -r one finished && echo equal
