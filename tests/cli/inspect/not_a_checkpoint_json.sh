printf "\xff\x00\nnothing" > "b\"ad"
ckpt-inspect "b\"ad" --json
