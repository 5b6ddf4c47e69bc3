"""Parts of a graph: which rank owns which node, and the parts as files. Nothing here knows about processes."""
