"""`CacheCollector`: the counts of the cache as metrics of Prometheus. Needs the package `prometheus_client`."""

from collections.abc import Iterator, Mapping
from typing import Any

from graphspec.cache.tiers.counting import Counters
from graphspec.errors import EnvironmentProblem, Problem


class CacheCollector:
    """Metrics over the counters of one store or several, by name: ``REGISTRY.register(CacheCollector({"disk": counters}))``.

    The name is the label `store`. Each scrape is one snapshot of each store, so its numbers add up. Counts are those of
    this process; where Prometheus asks several processes at once, label them by rank in the scrape's configuration.

    | metric | labels | counts |
    |---|---|---|
    | ``graphspec_cache_lookups_total`` | store, outcome | lookups that ended |
    | ``graphspec_cache_puts_total`` | store, result | puts that ended |
    | ``graphspec_cache_read_bytes_total`` | store | bytes of payload of the hits |
    | ``graphspec_cache_written_bytes_total`` | store | bytes of payload that were written |
    | ``graphspec_cache_saved_seconds_total`` | store | seconds that the compiles behind the hits had taken |
    | ``graphspec_cache_lookup_seconds_total`` | store | seconds that lookups took |
    | ``graphspec_cache_put_seconds_total`` | store | seconds that puts took |

    Raises `EnvironmentProblem` where the package is missing.
    """

    def __init__(self, counters: Mapping[str, Counters]) -> None:
        self._counters = dict(counters)
        _family("lookups", "", ())

    def collect(self) -> Iterator[Any]:
        """All metrics, each outcome and result with its count, also where that is 0."""
        lookups, puts, *totals = self.describe()
        for store, counters in self._counters.items():
            counts = counters.snapshot()
            for outcome, count in counts.outcomes.items():
                lookups.add_metric((store, outcome.value), count)
            for result, count in counts.results.items():
                puts.add_metric((store, result.value), count)
            for family, total in zip(
                totals,
                (
                    counts.read_bytes,
                    counts.written_bytes,
                    counts.saved_seconds,
                    counts.lookup_seconds,
                    counts.put_seconds,
                ),
                strict=True,
            ):
                family.add_metric((store,), total)
        yield from (lookups, puts, *totals)

    def describe(self) -> Iterator[Any]:
        """The metrics without values: a registry refuses a second collector of the same names by them."""
        yield _family("lookups", "Lookups that ended, by outcome.", ("outcome",))
        yield _family("puts", "Puts that ended, by result.", ("result",))
        yield _family("read_bytes", "Bytes of payload of the hits.")
        yield _family("written_bytes", "Bytes of payload that were written.")
        yield _family("saved_seconds", "Seconds that the compiles behind the hits had taken.")
        yield _family("lookup_seconds", "Seconds that lookups took.")
        yield _family("put_seconds", "Seconds that puts took.")


def _family(name: str, documentation: str, labels: tuple[str, ...] = ()) -> Any:
    return prometheus_core().CounterMetricFamily(
        f"graphspec_cache_{name}", documentation, labels=("store", *labels)
    )


def prometheus_core() -> Any:
    """The classes of metrics of `prometheus_client`. Raises `EnvironmentProblem` where the package is missing."""
    try:
        from prometheus_client import core
    except ImportError:
        raise EnvironmentProblem(
            Problem(
                where="package prometheus_client",
                found="nothing that can be imported",
                wanted="the package that serves metrics to Prometheus",
                hint="pip install 'graphspec-engine[metrics]'",
            )
        ) from None
    return core
