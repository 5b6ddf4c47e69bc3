"""Commands, one module each, assembled by ``equipoise.cli``. Large packages are imported inside the commands."""
