sed 's/emerging_optimizers Lion/emerging_optimizers PSGD/' "$GOLDEN/steps/lion_l2.json" > psgd.json
step-replay check psgd.json; echo "exit $?"
step-replay check --emerging-optimizers 0.2 "$GOLDEN/steps/adaptive_muon_namo_spectral_plain.json"
echo "exit $?"
step-replay check "$GOLDEN/lw_muon_bf16_torch_dp2/manifest.json"; echo "exit $?"
echo '{"eo": "v0.3.0", "seed": 11, "index": []}' > index.json
step-replay check index.json; echo "exit $?"
step-replay check "$GOLDEN/steps/muon_aol_ns5.json" nowhere.json; echo "exit $?"
step-replay check; echo "exit $?"
