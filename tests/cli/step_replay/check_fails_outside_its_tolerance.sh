step-replay check "$GOLDEN/steps/muon_aol_ns5.json" > /dev/null; echo "exit $?"
step-replay check "$GOLDEN/steps/muon_aol_ns5.json" --from-recorded-state > /dev/null; echo "exit $?"
step-replay check "$GOLDEN/steps/muon_aol_ns5.json" --atol 1e-12 > /dev/null; echo "exit $?"
