shardwise=$(command -v shardwise)
sample="$GOLDEN/torch_save_zip/zip.pt"
for name in ckpt-inspect inspect ckpt-reshard reshard convert other; do
  ln -s "$shardwise" "$name"
  "./$name" --help | sed -n '/^Usage/p'
done
same() { diff <("$@" 2>&1 || echo $?) <("./${as[@]}" 2>&1 || echo $?); }
as=(ckpt-inspect ls "$sample"); same ckpt-inspect ls "$sample"
for before in --json help -q; do
  as=(other "$before" inspect "$sample"); same ckpt-inspect "$before" "$sample"
done
shardwise convert "$sample" made --to torch_dist >/dev/null && ckpt-inspect diff "$sample" made
shardwise --version
shardwise || echo $?
shardwise inspekt "$sample" || echo $?
shardwise -j 4 inspect || echo $?
shardwise --help
