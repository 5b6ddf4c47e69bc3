"""The commands, a file each; ``equipoise.cli`` puts them together. Heavy imports happen inside a command, not here."""
