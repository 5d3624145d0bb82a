cd "$GOLDEN/lw_muon_bf16_torch_dp2"
step-replay run ckpt --grads expected --from-init --device cuda >"$HOME/out" 2>"$HOME/err"
case $? in
  0) [ -s "$HOME/out" ] ;;
  4) grep -c '^step-replay: error: .device.: ' "$HOME/err" | grep -qx 1 || cat "$HOME/err" ;;
  *) cat "$HOME/out" "$HOME/err" ;;
esac
step-replay run ckpt --grads expected --from-init --device tpu
