"""What the webhook counts."""

from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class Metrics:
    def __init__(self, signatures: Sequence[str]) -> None:
        """signatures: the outcomes of signing."""
        self.registry = CollectorRegistry()
        self.reviews = Counter("kvpool_webhook_reviews", "Reviews by outcome.", ["outcome"], registry=self.registry)
        self.skipped = Counter(
            "kvpool_webhook_skipped", "Pods that did not join, by reason.", ["reason"], registry=self.registry
        )
        self.seconds = Histogram(
            "kvpool_webhook_review_seconds", "Time of a review.", buckets=_SECONDS, registry=self.registry
        )
        self.signatures = Counter(
            "kvpool_webhook_signatures",
            "Certificates asked for, by outcome: signed, or the reason why not.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in signatures:
            self.signatures.labels(outcome)
        for outcome in ("injected", "skipped", "denied", "unchanged", "failed", "malformed"):
            self.reviews.labels(outcome)

    def watch(self, name: str, help_text: str, read: Callable[[], float]) -> None:
        """A gauge whose value is read when it is asked for."""
        Gauge(f"kvpool_webhook_{name}", help_text, registry=self.registry).set_function(read)

    def exposition(self) -> bytes:
        return generate_latest(self.registry)
