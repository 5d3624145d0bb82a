ckpt-inspect nowhere
