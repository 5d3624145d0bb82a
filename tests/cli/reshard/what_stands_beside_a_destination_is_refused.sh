# Links, a pipe and foreign folders where the staging folder and its files go: named, left as they are, exit 5.
from="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
mkdir -p victim/content && echo precious > victim/f && echo precious > victim/content/g
victim() { find . \( -path './victim/*' -o -name notes \) -type f -exec sha256sum {} + | sort -k 2; find . -type l -o -type p | sort; }
refused() { # NAME OPTIONS: of a staging folder that is planted already
  name=$1 && shift
  victim > before
  case $name in
    o) reshard "$from" $name --dp 1 -q "$@" ;;
    o.pt) ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" $name --to torch -q "$@" ;;
    o.safetensors) ckpt-convert "$GOLDEN/torch_save_zip/zip.pt" $name --to safetensors -q "$@" ;;
  esac > /dev/null 2> said
  echo "exit $?: $*"
  victim | cmp before - && head -1 said
}

for name in o o.pt o.safetensors; do
  staging=.$name.shardwise-partial
  echo "== $name: a link to a folder"
  ln -s "$PWD/victim" $staging
  for options in "" --resume --finish --clean --force "--force --clean" "--rank 0 --world-size 2"; do
    refused $name $options
  done
  rm $staging
  echo "== $name: a pipe, a link to nothing, somebody's folder"
  mkfifo $staging && refused $name --clean && rm $staging
  ln -s nowhere $staging && refused $name --clean && rm $staging
  mkdir $staging && echo mine > $staging/notes && refused $name --clean && refused $name && rm -r $staging
  mkdir -p $staging/content && echo mine > $staging/content/notes
  refused $name --clean
  refused $name --finish
  rm -r $staging
done

echo "== in a job that was started"
staging=.o.shardwise-partial
start() { rm -rf $staging && reshard "$from" o --dp 1 --rank 0 --world-size 2 > /dev/null; }
for entry in notes lock job part-1 content replaced; do
  start && rm -rf $staging/$entry && ln -s "$PWD/victim" $staging/$entry
  echo "-- $entry is a link"
  for options in --clean --finish --resume "--force --clean" "--rank 1 --world-size 2"; do refused o $options; done
done
echo "-- a file and a link among the files of the output"
start && echo mine > $staging/content/notes && refused o --clean
start && ln -s "$PWD/victim" $staging/content/link && refused o --clean && refused o --rank 1 --world-size 2
ls $staging/content/link
rm $staging/content/link
echo "== without them it is finished, and what is left is removed"
reshard "$from" o --dp 1 --rank 1 --world-size 2 -q && ls -A | grep "o$\|partial"

echo "== a tracker, and what it is made of"
mkdir root && ln -s "$PWD/victim/f" root/latest_checkpointed_iteration.txt
into() { reshard "$from" --into root --dp 1 -q "$@" 2> said; echo "exit $?: $*"; head -1 said; }
into
rm root/latest_checkpointed_iteration.txt
mkdir root/.latest_checkpointed_iteration.txt.new && echo mine > root/.latest_checkpointed_iteration.txt.new/notes
into
into --clean
find root -type f -o -type l
