for file in soap_kl_qr adaptive_muon_namo_spectral_plain; do
  step-replay check "$GOLDEN/steps/$file.json"
  echo "exit $?"
done
step-replay check "$GOLDEN/lw_muon_bf16_torch_dp2/manifest.json"; echo "exit $?"
echo '{"eo": "v0.3.0", "seed": 11, "index": []}' > index.json
step-replay check index.json; echo "exit $?"
step-replay check "$GOLDEN/steps/muon_aol_ns5.json" nowhere.json; echo "exit $?"
step-replay check; echo "exit $?"
