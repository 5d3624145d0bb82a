# Where a word is not ours, the error says what is.
cp "$GOLDEN/torch_save_zip/zip.pt" a.pt; cp a.pt b.pt; ln -s nowhere dangling
for words in "compare a.pt b.pt" "list a.pt" "info a.pt" "sha256 a.pt" "a.pt b.pt" "ls a.pt --limit 99999999999999999999" \
             "dangling" "diff dangling a.pt"; do
  ckpt-inspect $words 2>&1; echo "exit $?"
done
ckpt-inspect -V | sed 's/[0-9.]*$/N/'
