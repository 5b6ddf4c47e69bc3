"""Full-batch training of a node classifier, and the recorder that measures it."""
