ckpt-inspect hash nowhere --json
