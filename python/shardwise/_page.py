"""A summary as HTML, for notebooks."""
from __future__ import annotations

import html
from typing import Any


def page(summary: dict[str, Any]) -> str:
    """A small table of what `shardwise.summary` gives; names from files are escaped."""
    sizes = summary["parallel"]
    status = summary["status"]
    problem = f": {status['problem']}" if "problem" in status else ""
    rows = [("path", summary["path"]), ("format", summary["format_text"]),
            ("iteration", summary.get("iteration")), ("parameters", summary.get("parameters")),
            ("tensors", f"{summary['tensor_bytes']:,} bytes"),
            ("files", f"{summary['file_count']:,}, {summary['file_bytes']:,} bytes"),
            ("parallel", ", ".join(f"{name} {size}" for name, size in sizes.items() if size != 1)),
            ("optimizer", ", ".join(rule["rule"] for rule in summary["optimizer"]["rules"])),
            ("status", status["health"] + problem)]
    cells = "".join(f"<tr><th>{name}</th><td>{html.escape(str(value))}</td></tr>"
                    for name, value in rows if value not in (None, ""))
    return f"<table>{cells}</table>"
