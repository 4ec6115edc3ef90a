"""The ledger as OpenTelemetry spans: what a collector gets."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from attrs import define, evolve, field
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from used import ONE

from turntape.transport.ledger.otel import OtelSink
from turntape.transport.ledger.record import LedgerError


@define
class Collector:
    """Answers with ``status``; keeps what it was sent."""

    url: str
    status: int = 200
    requests: list[tuple[str, ExportTraceServiceRequest]] = field(factory=list)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        server.shutdown()
        thread.join()


def test_a_span_says_what_a_record_says() -> None:
    """Name, kind, times and attributes are those of the conventions; what failed is an error with its code."""
    exporter = InMemorySpanExporter()
    sink = OtelSink(exporter)
    failed = evolve(ONE, status="failed", error="rate_limit_exceeded", response_id="", uncounted=1)
    sink.write([evolve(ONE, at=1e9, duration_s=2.5, reasoning_tokens=7), failed])
    whole, refused = exporter.get_finished_spans()
    assert (whole.name, whole.kind, whole.status.status_code) == ("chat m", SpanKind.CLIENT, StatusCode.UNSET)
    assert (whole.start_time, whole.end_time) == (999_999_997_500_000_000, 1_000_000_000_000_000_000)
    said = {name: value for name, value in (whole.attributes or {}).items() if not name.startswith("turntape.")}
    assert said == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "b",
        "gen_ai.request.model": "m",
        "gen_ai.response.model": "u",
        "gen_ai.response.id": "resp_0",
        "gen_ai.response.time_to_first_chunk": 0.5,
        "gen_ai.usage.input_tokens": 100,
        "gen_ai.usage.cache_read.input_tokens": 60,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.usage.reasoning.output_tokens": 7,
        "user_agent.original": "agent/1",
    }
    assert whole.resource.attributes["service.name"] == "turntape"
    assert refused.status.status_code is StatusCode.ERROR
    assert refused.attributes is not None and refused.attributes["error.type"] == "rate_limit_exceeded"
    assert not any(name.startswith("gen_ai.usage") for name in refused.attributes)


def test_a_collector_gets_all_or_is_asked_again(collector: Collector) -> None:
    """What it refuses is an error of the ledger's, and comes again with the same ids."""
    sink = OtelSink()
    collector.status = 400
    with pytest.raises(LedgerError, match="the collector did not take it"):
        sink.write([ONE])
    collector.status = 200
    sink.write([ONE])
    sink.close()
    (path, first), (_, second) = collector.requests
    assert path == "/v1/traces"
    assert first == second
    [span] = second.resource_spans[0].scope_spans[0].spans
    assert span.name == "chat m" and span.trace_id and span.span_id


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without OpenTelemetry's packages the error says how to get them."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(LedgerError, match=r"not installed; pip install 'turntape\[otel\]'"):
        OtelSink()
