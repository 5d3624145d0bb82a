step-replay --help
step-replay run --help
step-replay check --help
