ckpt="$GOLDEN/lw_muon_bf16_torch_dist_dp2/ckpt"
ckpt-inspect show "$ckpt" --stats --include '*layers*linear*weight' --exclude '*optimizer*' --sort norm
ckpt-inspect show "$ckpt" --stats --include '*layers*linear*weight' --exclude '*optimizer*' --sort max --csv
ckpt-inspect show "$ckpt" --stats --include '*layers*linear*weight' --exclude '*optimizer*' --sort std --json |
  python3 -c 'import json, sys; print([round(each["tensor"]["std"], 4) for each in json.load(sys.stdin)["entries"]])'
ckpt-inspect show "$GOLDEN/torch_save_zip/zip.pt" --stats --sort nan --include '*exp_avg' --include '/big*' | head -n 2
ckpt-inspect show "$ckpt" "*weight" --sort norm; echo "exit $?"
ckpt-inspect show "$ckpt" --stats --csv --json > /dev/null; echo "exit $?"
ckpt-inspect show "$ckpt" --stats --quantiles --include 'decoder*linear*weight'
ckpt-inspect show "$ckpt" --stats --quantiles --csv --include 'output_layer*'
ckpt-inspect show "$ckpt" --quantiles '*weight' > /dev/null; echo "exit $?"
