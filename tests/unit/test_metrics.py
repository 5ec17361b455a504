"""The metrics for Prometheus: the counts of each store under fixed names, one snapshot a scrape."""

import builtins
import runpy

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from graphspec.cache.store import Outcome
from graphspec.cache.tiers import metrics
from graphspec.cache.tiers.counting import Counters, CountingStore, PutResult
from graphspec.cache.tiers.memory import MemoryStore
from graphspec.cache.tiers.metrics import CacheCollector
from graphspec.errors import EnvironmentProblem
from support.entries import METADATA, entry_of, key_of
from support.stores import PlainStore


def scraped(**counters):
    """What Prometheus reads: each sample's value by its name and labels, as text."""
    registry = CollectorRegistry()
    registry.register(CacheCollector(counters))
    return {
        f"{sample.name}{{{','.join(f'{k}={v}' for k, v in sorted(sample.labels.items()))}}}": sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


@pytest.fixture
def used():
    """Counters of a store that wrote one entry, had it twice, and missed once."""
    store = CountingStore(MemoryStore(), Counters())
    store.get(key_of("a"))
    store.put(entry_of("a", b"12345"))
    store.put(entry_of("a", b"other"))
    store.get(key_of("a"))
    store.get(key_of("a"))
    return store.counters


def test_every_count_is_a_sample(used):
    """Lookups by outcome, puts by result, bytes and seconds: the numbers of the snapshot, under their names."""
    counts, samples = used.snapshot(), scraped(disk=used)
    for outcome in Outcome:
        name = f"graphspec_cache_lookups_total{{outcome={outcome.value},store=disk}}"
        assert samples.pop(name) == counts.outcomes[outcome]
    for result in PutResult:
        name = f"graphspec_cache_puts_total{{result={result.value},store=disk}}"
        assert samples.pop(name) == counts.results[result]
    assert samples == {
        "graphspec_cache_read_bytes_total{store=disk}": 10.0,
        "graphspec_cache_written_bytes_total{store=disk}": 5.0,
        "graphspec_cache_saved_seconds_total{store=disk}": 2 * METADATA["compile_seconds"],
        "graphspec_cache_lookup_seconds_total{store=disk}": counts.lookup_seconds,
        "graphspec_cache_put_seconds_total{store=disk}": counts.put_seconds,
    }
    assert (counts.outcomes[Outcome.HIT], counts.outcomes[Outcome.MISS]) == (2, 1)


def test_stores_are_told_apart_by_a_label(used):
    """Two levels of one cache are two values of `store`, and neither has the other's counts."""
    samples = scraped(disk=used, remote=Counters())
    assert samples["graphspec_cache_lookups_total{outcome=hit,store=disk}"] == 2.0
    assert samples["graphspec_cache_lookups_total{outcome=hit,store=remote}"] == 0.0


def test_a_scrape_sees_what_was_counted_since(used):
    """The registry keeps the collector, and the collector no numbers."""
    registry = CollectorRegistry()
    registry.register(CacheCollector({"disk": used}))

    def hits():
        return registry.get_sample_value(
            "graphspec_cache_lookups_total", {"store": "disk", "outcome": "hit"}
        )

    before = hits()
    store = CountingStore(PlainStore(), used)
    store.put(entry_of("b"))
    store.get(key_of("b"))
    assert (before, hits()) == (2.0, 3.0)


def test_a_second_collector_in_one_registry_is_refused():
    """Two would give each name twice, and Prometheus would refuse the whole scrape."""
    registry = CollectorRegistry()
    registry.register(CacheCollector({"disk": Counters()}))
    with pytest.raises(ValueError, match="graphspec_cache_lookups"):
        registry.register(CacheCollector({"disk": Counters()}))


def test_a_missing_package_is_told_when_the_collector_is_made(monkeypatch):
    """The module can be imported without it; the error names the package and how to get it, before the first scrape."""
    real = builtins.__import__

    def refuse(name, *arguments):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", refuse)
    module = runpy.run_path(metrics.__file__)
    with pytest.raises(EnvironmentProblem) as caught:
        module["CacheCollector"]({})
    assert "graphspec-engine[metrics]" in str(caught.value)
