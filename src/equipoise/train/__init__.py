"""One training run, as the paper's protocol has it."""
