"""Records of generations: metadata only. No prompt, no text and no tensor is ever stored."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.validators import MinValueValidator
from django.db import models
from rest_framework_api_key.models import AbstractAPIKey, BaseAPIKeyManager


class APIKeyManager(BaseAPIKeyManager):
    """Makes and looks up keys. `get_from_key` of the library accepts expired keys: use `usable`."""

    def usable(self, key: str) -> APIKey | None:
        """The key's row if it is known, not revoked and not expired, else None."""
        try:
            row = self.get_from_key(key)
        except self.model.DoesNotExist:
            return None
        return None if row.has_expired else row


class APIKey(AbstractAPIKey):
    """A client's key for /v1; stored hashed, shown once. A limit that is empty does not limit."""

    last_used_at = models.DateTimeField(
        "last used", null=True, blank=True, editable=False, help_text="Written at most once a minute."
    )
    allowed_models = models.TextField(
        blank=True, help_text="Ids of the models that it may use, one a line. Empty: all that are served."
    )
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="In any 60 seconds. Empty: no limit."
    )
    tokens_per_day = models.PositiveBigIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1)],
        help_text="Of prompts and answers; days are those of UTC. Empty: no limit.",
    )
    concurrent_generations = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="At the same time. Empty: no limit."
    )

    objects = APIKeyManager()

    class Meta(AbstractAPIKey.Meta):
        verbose_name = "API key"
        verbose_name_plural = "API keys"

    @property
    def has_limits(self) -> bool:
        """Whether its requests have to be counted."""
        return (self.requests_per_minute, self.tokens_per_day, self.concurrent_generations) != (None, None, None)

    @property
    def model_ids(self) -> list[str]:
        """The models that it may use; empty when it may use all."""
        return list(dict.fromkeys(line.strip() for line in self.allowed_models.splitlines() if line.strip()))

    def usable_models(self, served: Iterable[str]) -> list[str]:
        """Those of the served models that it may use."""
        allowed = self.model_ids
        return [model for model in served if not allowed or model in allowed]


class KeyUsage(models.Model):
    """What a key used on one day (UTC) in all; written when a generation ends, whatever came of it."""

    api_key = models.ForeignKey(APIKey, on_delete=models.CASCADE, related_name="usage")
    day = models.DateField(db_index=True)
    requests = models.PositiveIntegerField(default=0)
    prompt_tokens = models.PositiveBigIntegerField(default=0)
    completion_tokens = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ("-day", "api_key")
        verbose_name = "usage of API keys"
        verbose_name_plural = "usage of API keys"
        constraints = (models.UniqueConstraint(fields=("api_key", "day"), name="one_row_per_key_and_day"),)

    def __str__(self) -> str:
        return f"{self.api_key} {self.day}"


class KeyRequest(models.Model):
    """A request of a key with limits that was let in; `limits_database` counts these rows and deletes old ones."""

    api_key = models.ForeignKey(APIKey, on_delete=models.CASCADE, related_name="+")
    owner = models.CharField(max_length=64, help_text="Boot id of the head worker that answers it.")
    started_at = models.DateTimeField()
    running = models.PositiveIntegerField(help_text="How many generations it holds; 0 once it was answered.")

    class Meta:
        indexes = (models.Index(fields=("api_key", "started_at"), name="requests_of_a_key"),)

    def __str__(self) -> str:
        return f"{self.api_key_id[:8]} {self.started_at:%H:%M:%S}"


class HeadWorker(models.Model):
    """One head worker's sign of life: its keeper updates `beat_at`. Owners silent for 30 s are taken for dead."""

    boot_id = models.CharField(max_length=64, unique=True)
    hostname = models.CharField(max_length=255)
    pid = models.PositiveIntegerField()
    started_at = models.DateTimeField()
    beat_at = models.DateTimeField(db_index=True)

    def __str__(self) -> str:
        return f"{self.hostname} {self.pid}"


class Generation(models.Model):
    """One answer: written when it starts and when it ends, never per token."""

    class Status(models.TextChoices):
        RUNNING = "running"
        DONE = "done"
        FAILED = "failed"
        CANCELLED = "cancelled"
        INTERRUPTED = "interrupted"

    class FinishReason(models.TextChoices):
        STOP = "stop"
        LENGTH = "length"

    session_id = models.CharField(max_length=64, unique=True)
    owner = models.CharField(max_length=64, db_index=True, help_text="Boot id of the head worker that runs it.")
    api_key = models.ForeignKey(APIKey, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    model_name = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=255, blank=True)
    route = models.JSONField(default=list, help_text='[{"node": url, "start": layer, "end": layer}, …]')
    status = models.CharField(max_length=16, choices=Status, default=Status.RUNNING, db_index=True)
    finish_reason = models.CharField(max_length=16, choices=FinishReason, blank=True)
    error = models.CharField(max_length=500, blank=True)
    streamed = models.BooleanField(default=False)
    prompt_tokens = models.PositiveIntegerField(default=0)
    completion_tokens = models.PositiveIntegerField(default=0)
    prefills = models.PositiveIntegerField(default=0)
    cache_misses = models.PositiveIntegerField(default=0)
    failovers = models.PositiveIntegerField(default=0)
    cancel_requested = models.BooleanField(default=False, help_text="Seen by its owner's keeper within a second.")
    hops = models.JSONField(
        default=list,
        help_text='[{"node": url, "steps": n, "compute_ms": …, "queue_ms": …, "network_ms": …}, …], totals',
    )
    timeline = models.JSONField(
        default=list, help_text='[{"at": seconds since the start, "event": "prefill", "detail": …}, …]'
    )
    cached = models.BooleanField(default=True, help_text="False when a node could not cache and each step ran it all.")
    time_to_first_token = models.FloatField(null=True, blank=True, help_text="Seconds.")
    tokens_per_second = models.FloatField(null=True, blank=True, help_text="Of the decode phase.")
    started_at = models.DateTimeField(db_index=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ("-started_at",)
        permissions = (("cancel_generation", "Can cancel running generations"),)

    def __str__(self) -> str:
        return f"{self.model_name} {self.session_id[:8]}"
