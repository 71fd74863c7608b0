"""Records of generations: metadata only. No prompt, no text and no tensor is ever stored."""

from __future__ import annotations

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
    """A client's key for /v1; stored hashed, shown once."""

    objects = APIKeyManager()

    class Meta(AbstractAPIKey.Meta):
        verbose_name = "API key"
        verbose_name_plural = "API keys"


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
