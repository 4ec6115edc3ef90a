"""Everything that awaits: sockets, nurseries, timeouts, the store, backends. No protocol decisions."""
