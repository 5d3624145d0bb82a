# --help-all has all options, --help the most used of them, in an order of its own.
ckpt-convert --help
for command in "ckpt-convert" "ckpt-convert repair" "ckpt-convert finish" reshard \
  "ckpt-inspect can-load" "step-replay run"; do
  $command --help | grep -oE '^  -[^ ]+( --[^ ]+)?' | sort > short
  $command --help-all | grep -oE '^  -[^ ]+( --[^ ]+)?' | sort > all
  echo "$command: $(wc -l < short) of $(wc -l < all), others: $(comm -23 short all | wc -l)"
done
ckpt-inspect ls --help > short
ckpt-inspect ls --help-all | diff short - && echo "ls has all in both"
