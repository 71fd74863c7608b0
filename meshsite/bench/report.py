"""From raw samples to the fixed names of `latest.json` and to a table. Pure: measures nothing, writes no file."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from meshsite.bench.scale import MEASURES, RATIOS
from meshsite.bench.trips import HANDED_OVER, RELAYED

#: What each ratio must reach: at least (>=) or at most (<=).
BARS: dict[str, tuple[str, float]] = {
    "mesh2_vs_generate": (">=", 0.95),
    "mesh2_vs_transformers_pp": (">=", 1.05),
    "flatness_512_vs_32": ("<=", 1.10),
    "agg8_vs_generate": (">=", 3.5),
    "agg16_vs_generate": (">=", 5.0),
    "hop_ms_p50": ("<=", 2.0),
    "hop_ms_p95": ("<=", 4.0),
    "wire_bytes_over_payload": ("<=", 1500),
    "ttft512_mesh2_vs_generate": ("<=", 1.1),
    "stall_max_vs_median": ("<=", 5.0),
    "handover_vs_relay_20ms": ("<=", 0.7),
}


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float | None:
    """The median over rounds of the ratio within each round; None without samples."""
    pairs = list(zip(numerators, denominators, strict=False))
    return statistics.median(above / below for above, below in pairs) if pairs else None


def percentile(samples: Sequence[float], percent: float) -> float | None:
    """The sample below which so many percent lie, between two of them in proportion; None without samples."""
    if not samples:
        return None
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratios(samples: Mapping[str, Any]) -> dict[str, float | None]:
    """Every fixed name; None where its measure was not run, or not with all whom it compares."""
    decode, flat = samples.get("decode", {}), samples.get("flatness", {}).get("mesh2", {})
    crowd = samples.get("sessions", {})
    alone, crowds = crowd.get("generate", {}).get("1", []), crowd.get("mesh2", {})
    first = samples.get("ttft", {}).get("512", {})
    trips = samples.get("handover", {})
    overheads = [value for node in samples.get("hops", {}).get("nodes", {}).values() for value in node["overhead_ms"]]
    wire = samples.get("wire", {})
    sizes = [size for hop in wire.get("hops", {}).values() for size in hop]
    stalls = samples.get("stall", [])
    mesh2 = decode.get("mesh2", [])
    return {
        "mesh2_vs_generate": ratio(mesh2, decode.get("generate", [])),
        "mesh2_vs_transformers_pp": ratio(mesh2, decode.get("transformers_pp", [])),
        "flatness_512_vs_32": ratio(flat.get("512", []), flat.get("32", [])),
        "agg8_vs_generate": ratio(crowds.get("8", []), alone),
        "agg16_vs_generate": ratio(crowds.get("16", []), alone),
        "hop_ms_p50": percentile(overheads, 50),
        "hop_ms_p95": percentile(overheads, 95),
        "wire_bytes_over_payload": max(sizes) - wire["payload_bytes"] if sizes else None,
        "ttft512_mesh2_vs_generate": ratio(first.get("mesh2", []), first.get("generate", [])),
        "stall_max_vs_median": ratio([one["worst_ms"] for one in stalls], [one["median_ms"] for one in stalls]),
        "handover_vs_relay_20ms": ratio(trips.get(HANDED_OVER, []), trips.get(RELAYED, [])),
        "mesh2_vs_llama_cpp": ratio(mesh2, decode.get("llama_cpp", [])),
    }


def reasons(found: Mapping[str, float | None], measures: Sequence[str], absent: Mapping[str, str]) -> dict[str, str]:
    """Why a name has no value: its measure was not asked for, or what `absent` says of the measure or contender."""
    said = {}
    for name, value in found.items():
        if value is not None:
            continue
        if RATIOS[name] not in measures:
            said[name] = f"The measure {RATIOS[name]} was not run."
            continue
        mesh = "mesh3" if RATIOS[name] == "handover" else "mesh2"
        blamed = (name.partition("_vs_")[2], mesh, RATIOS[name])
        why = [absent[who] for who in blamed if who in absent]
        said[name] = why[0] if why else "It was not measured at this size."
    return said


def ratio_lines(found: Mapping[str, float | None], why: Mapping[str, str]) -> list[str]:
    """A line for each fixed name: value, bar and whether it is reached."""
    lines = []
    for name, value in found.items():
        bar = BARS.get(name)
        if value is None:
            lines.append(f"  {name:<28} {'-':>9}  {why.get(name, '')}")
        elif bar is None:
            lines.append(f"  {name:<28} {value:>9.3f}")
        else:
            sign, limit = bar
            reached = value >= limit if sign == ">=" else value <= limit
            lines.append(f"  {name:<28} {value:>9.3f}  {sign} {limit:g}: {'reached' if reached else 'MISSED'}")
    return lines


def tables(samples: Mapping[str, Any]) -> list[str]:
    """Medians of everything that was measured, for people."""
    lines: list[str] = []
    for measure in MEASURES:
        if measure in samples:
            lines += [_TITLES[measure], *_rows(measure, samples[measure])]
    return lines


_TITLES = {
    "decode": "tokens/s, one session",
    "hops": "one token, milliseconds (median, 95th percentile)",
    "wire": "bytes of a decode step, request and answer (largest)",
    "flatness": "ms per token, by length of the text",
    "ttft": "ms to the first token, by length of the prompt",
    "sessions": "tokens/s together, by number of sessions",
    "stall": "ms between tokens beside a long prompt",
    "memory": "resident MiB of each process",
    "handover": "ms per token without computing, nodes far apart",
}


def _rows(measure: str, found: Any) -> list[str]:
    if measure in ("decode", "handover"):
        return [_row(name, {"": values}) for name, values in found.items() if values]
    if measure in ("flatness", "sessions"):
        return [_row(name, by) for name, by in found.items()]
    if measure == "ttft":
        names = dict.fromkeys(name for by in found.values() for name in by)
        return [_row(name, {length: by[name] for length, by in found.items() if name in by}) for name in names]
    if measure == "stall":
        keys = ("median_ms", "during_ms", "worst_ms", "first_token_ms")
        return [_row(key.removesuffix("_ms"), {"": [one[key] for one in found]}) for key in keys]
    if measure == "memory":
        return [
            f"  {name:<24} " + "  ".join(f"{(size or 0) / 2**20:.0f}" for size in by.values())
            for name, by in found.items()
        ]
    if measure == "wire":
        payload = found["payload_bytes"]
        return [
            f"  {name:<24} {max(sizes)}, {max(sizes) - payload} beside two hidden states of {payload // 2}"
            for name, sizes in found["hops"].items()
        ]
    parts = {**found["nodes"], "head": found["head"]}
    return [
        f"  {name:<24} "
        + "  ".join(
            f"{key.removesuffix('_ms')} {percentile(values, 50):.2f} {percentile(values, 95):.2f}"
            for key, values in by.items()
            if values
        )
        for name, by in parts.items()
    ]


def _row(name: str, by: Mapping[str, Sequence[float]]) -> str:
    cells = (f"{key + ': ' if key else ''}{statistics.median(values):.1f}" for key, values in by.items() if values)
    return f"  {name:<24} " + "  ".join(cells)
