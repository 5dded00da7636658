"""The command line: wires rooms together and holds no logic of its own.

One file per command. A command imports the rooms it needs inside its function: that is what keeps `clearhead
--help` from waiting for torch, and this room is the only one where an import may stand there.
"""
