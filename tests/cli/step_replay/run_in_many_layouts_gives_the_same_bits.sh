sample="$GOLDEN/lw_muon_bf16_torch_dp2"
step-replay run "$sample/ckpt" --grads "$sample/expected" --from-init -o one > /dev/null || exit
for layout in "--dp 1" "--dp 3" "--dp 4 --spawn 4" "--dp 2 --spawn 3" "--dp 31 --spawn 2 --ownership balanced"; do
  step-replay run "$sample/ckpt" --grads "$sample/expected" --from-init $layout \
    --expect one --atol 0 > /dev/null
  echo "$layout: exit $?"
done
