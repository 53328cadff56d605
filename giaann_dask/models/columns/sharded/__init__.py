"""An activation state in parts over workers."""
