"""The command line: connects the packages, and has no logic of its own.

One file per command. A command imports the packages it needs inside its function, so that `clearhead --help`
does not wait for torch; no other package may import inside functions.
"""
