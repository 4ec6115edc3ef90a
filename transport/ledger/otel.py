"""A ledger as OpenTelemetry spans, one for each response, sent to a collector over OTLP/HTTP.

Where to, with which headers and under which service name, the standard variables say (``OTEL_EXPORTER_OTLP_ENDPOINT``,
``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_SERVICE_NAME``). Attributes are those of the GenAI semantic conventions, which are in
development (read 2026-11); what they have no word for is under ``turntape.``.
"""

import hashlib
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .record import LedgerError, UsageRecord

if TYPE_CHECKING:  # an extra: imported where a ledger is made
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.util.types import AttributeValue

TIMEOUT_S = 2.0  # of one attempt; ours. The ledger tries again, and nobody waits for it


class OtelSink:
    """See ``Sink``. A batch that came to nothing is sent again whole, with the same span ids."""

    def __init__(self, exporter: "SpanExporter | None" = None) -> None:
        """
        Args:
            exporter: None for the one that the standard variables describe.

        Raises:
            LedgerError: the extra is not installed, or a standard variable holds nonsense.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
        except ImportError as exc:
            raise LedgerError(f"--ledger otel: {exc.name} is not installed; pip install 'turntape[otel]'") from None
        logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # the ledger says what fails, once
        try:
            self._exporter = exporter or OTLPSpanExporter(timeout=TIMEOUT_S)
            resource = Resource.create()
        except Exception as exc:
            raise LedgerError(f"The ledger otel cannot be used: {exc}. See the OTEL_ variables.") from exc
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "turntape"}))
        self._resource = resource

    def write(self, records: Sequence[UsageRecord]) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        if self._exporter.export([self._span(record) for record in records]) is not SpanExportResult.SUCCESS:
            raise LedgerError(
                "The ledger otel cannot be written: the collector did not take it. See the OTEL_ variables."
            )

    def close(self) -> None:
        self._exporter.shutdown()

    def _span(self, record: UsageRecord) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

        seed = f"{record.response_id} {record.at} {record.owner} {record.model} {record.status}".encode()
        ids = hashlib.blake2b(seed, digest_size=24).digest()
        context = SpanContext(
            int.from_bytes(ids[:16]) or 1, int.from_bytes(ids[16:]) or 1, False, TraceFlags(TraceFlags.SAMPLED)
        )
        failed = record.status == "failed"
        return ReadableSpan(
            name=f"chat {record.model}",
            context=context,
            resource=self._resource,
            attributes=attributes(record),
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.ERROR, record.error) if failed else Status(StatusCode.UNSET),
            start_time=round((record.at - record.duration_s) * 1e9),
            end_time=round(record.at * 1e9),
            instrumentation_scope=InstrumentationScope("turntape"),
        )


def attributes(record: UsageRecord) -> "dict[str, AttributeValue]":
    """What a span says of a response. Counts that are not known are left out."""
    said: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": record.backend or "turntape",
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.upstream_model or None,
        "gen_ai.response.id": record.response_id or None,
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "error.type": record.error,
        "user_agent.original": record.agent or None,
        "turntape.owner": record.owner or None,
        "turntape.transport": record.transport or None,
        "turntape.dialect": record.dialect or None,
        "turntape.status": record.status,
        "turntape.responses": record.responses,
        "turntape.samples": record.samples,
        "turntape.uncounted": record.uncounted,
        "turntape.estimated": record.estimated,
        "turntape.sampling_s": record.sampling_s,
    }
    if record.uncounted < record.samples:
        said |= {
            "gen_ai.usage.input_tokens": record.input_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.usage.output_tokens": record.output_tokens,
            "gen_ai.usage.reasoning.output_tokens": record.reasoning_tokens,
        }
    return {name: value for name, value in said.items() if value is not None}
