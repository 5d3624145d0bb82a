step-replay record ckpt --grads grads -o trace
