cp -r $GOLDEN/lw_muon_bf16_torch_dp2/ckpt from
ckpt-convert from whole --to torch_dist > /dev/null
convert() { ckpt-convert from out --to torch_dist "$@" > said; echo "exit $?$(sed -n '1s/^\(.*\): torch -> .*/, \1/p' said)"; }
staging=.out.shardwise-partial file=from/iter_0000003/mp_rank_00/layer_wise_optimizer_1.pt
convert --rank 0 --world-size 2
cp -p $file as_it_was

echo "== another time of change"
touch -d 2001-01-01 $file
convert --rank 1 --world-size 2
convert --rank 0 --world-size 2
convert --finish
touch -r as_it_was $file

echo "== another file of that size and time"
mv $file kept && cp -p as_it_was $file
convert --rank 1 --world-size 2
mv kept $file

echo "== all parts are there, not published: who holds the lock publishes"
exec 9> $staging/lock && flock 9
convert --rank 1 --world-size 2
exec 9>&-
touch -d 2001-01-01 $file
convert --finish
touch -r as_it_was $file

echo "== another version"
cp -p $staging/job job
version=$(ckpt-inspect --version | sed 's/.* //')
sed -i '1s/.*/shardwise 0.0.7/' $staging/job
for share in "--rank 1 --world-size 2" --finish; do
  convert $share 2>&1 | sed "s/, not $version,/, not THIS,/"
done
ls -d out 2> /dev/null
cp job $staging/job

echo "== as it was"
convert --finish
diff -r whole out && echo equal
ls -A
