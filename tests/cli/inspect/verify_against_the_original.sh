original="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
cp -r "$original" copy
chmod -R u+w copy
try() { ckpt-inspect verify "$@" -q; echo "exit $?"; }
ckpt-inspect verify copy --against "$original" | tail -n 2
ckpt-inspect verify copy/iter_0000003 --against "$original" --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["against"])'
try copy --against "$original"
echo more > copy/iter_0000003/notes
printf '\377' | dd of=copy/iter_0000003/metadata.json bs=1 seek=5 conv=notrunc status=none
printf x >> copy/iter_0000003/__0_0.distcp
try copy --against "$original"
ckpt-inspect verify copy --against "$original" | tail -n 1
rm copy/iter_0000003/.metadata copy/iter_0000003/__1_0.distcp
try copy --against "$original"
echo "what makes no sense"
try "$original" --against "$original"
try "$original" --against "$GOLDEN/torch_save_zip/zip.pt"
try "$original" --against nowhere
try "$original" --against copy
try copy --against "$original" --quick
try copy --against "$original" --include '*weight'
try copy --against "$original" --rank 0 --world-size 2
cp -r "$original/iter_0000003" iter_0000004
try iter_0000004 --against "$original"
echo "files, whatever they are called"
cp "$GOLDEN/torch_save_zip/zip.pt" other.pt
try other.pt --against "$GOLDEN/torch_save_zip/zip.pt"
cp -r "$original" links
cp -rl links linked
ckpt-inspect verify linked --against links | tail -n 1
try other.pt --against other.pt
ckpt-inspect hash other.pt > sums
ckpt-inspect hash -c sums "$GOLDEN/torch_save_zip/zip.pt"; echo "exit $?"
