"""A usage record for tests."""

from turntape.transport.ledger.record import UsageRecord

ONE = UsageRecord(
    at=1e9,
    owner="label",
    agent="agent/1",
    transport="websocket",
    dialect="current",
    response_id="resp_0",
    model="m",
    backend="b",
    upstream_model="u",
    status="completed",
    input_tokens=100,
    cached_tokens=60,
    output_tokens=20,
    ttft_s=0.5,
)
