ckpt-inspect
