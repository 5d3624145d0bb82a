# Whatever is printed is printed, or the command fails; a quiet one that is content prints nothing.
cd "$GOLDEN/lw_muon_bf16_torch_dp2"
for command in "verify ckpt" "verify -q ckpt" "ls ckpt --json" "hash ckpt" "diff -q ckpt ckpt" "latest ckpt" \
    "ls missing --json" --help --version; do
  ckpt-inspect $command >/dev/full
  echo "$command: $?"
done
