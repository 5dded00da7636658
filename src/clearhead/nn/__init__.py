"""The Transformer's parts: attention, positions and layers. Knows nothing about text, training or disks."""
