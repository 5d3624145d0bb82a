# One of the source's files lies elsewhere, behind a link.
cp -r "$GOLDEN/lw_muon_bf16_torch_dp2/ckpt" from && mkdir data
file=from/iter_0000003/mp_rank_00/model_optim_rng.pt
mv $file data && ln -s ../../../data/model_optim_rng.pt $file
before=$(ckpt-inspect hash --follow-links from | tail -1)
convert() { ckpt-convert from "$1" --to safetensors --force --follow-links; echo "exit $?"; }
convert data/model_optim_rng.pt
convert data
ln data/model_optim_rng.pt second_name
convert second_name
[ "$(ckpt-inspect hash --follow-links from | tail -1)" = "$before" ] && echo untouched
ls -A . data

# A file of a set of safetensors files, which lies in no folder of its own.
half() { printf '\x48\0\0\0\0\0\0\0%-72s%s' "{\"$1\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}" 1234; }
mkdir set && half a > set/1.safetensors && half b > set/2.safetensors
printf '{"weight_map":{"a":"1.safetensors","b":"2.safetensors"}}' > set/model.safetensors.index.json
ckpt-convert set/model.safetensors.index.json set/2.safetensors --to safetensors --force
echo "exit $?"
ckpt-inspect ls set/model.safetensors.index.json | tail -n +2
