ckpt-inspect --help
