"""Structured logs: one JSON object a line on standard error, from our code and from libraries alike."""

import logging
import sys

import structlog
from structlog.typing import Processor


def configure_logs(level: int = logging.INFO) -> None:
    """On return everything that is logged in this process becomes a JSON line on standard error."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.ExtraAdder(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # Each request to ourselves, and each step of a library, is no news for whoever runs the service.
    for name in ("httpx", "httpcore", "uvicorn.access", "uvicorn.error", "psycopg.pool"):
        logging.getLogger(name).setLevel(logging.WARNING)
