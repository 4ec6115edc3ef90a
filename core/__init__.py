"""The Responses API session as a pure state machine: events in, effects out. Imports attrs, cattrs, orjson, stdlib."""
