root=$GOLDEN/lw_muon_bf16_torch_dp2/ckpt
cp -r "$root" ckpt
for text in '\xef\xbb\xbf3' '+3' '3\r\n' '-3' ' 3' '0003' '99999999999999999999' ''; do
  printf -- "$text" > ckpt/latest_checkpointed_iteration.txt
  ckpt-convert ckpt out --to torch_dist > /dev/null
  echo "'$text': $?"
  rm -rf out
done
echo "into a root whose tracker is not understood: nothing is written"
mkdir root
printf '+7' > root/latest_checkpointed_iteration.txt
ckpt-convert "$root" --into root --to torch_dist
echo "$?"
ls -A root
