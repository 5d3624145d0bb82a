# Also where nothing would have been printed: who closes stdout does not get to see damage.
cd "$GOLDEN/lw_muon_bf16_torch_dp2"
for command in "verify ckpt" "verify -q ckpt" "ls ckpt" "hash ckpt" "diff -q ckpt ckpt" "latest ckpt" \
    "verify ckpt --json" --help --version; do
  ckpt-inspect $command >&-
  echo "$command: $?"
done
ckpt-inspect latest ckpt 1</dev/null
echo "stdout that can be read alone: $?"
ckpt-inspect latest ckpt <&- 2>&-
echo "stdin and stderr closed: $?"
