"""An activation state in parts: over the devices of a process, or over workers."""
