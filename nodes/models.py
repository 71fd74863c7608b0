"""What the head's database knows of nodes. Sessions live in the nodes' memory and are never stored."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db import models

#: So many beats in a row must be missed before a node is taken for gone,
MISSED_BEATS = 3
#: and so many seconds must have passed: a busy machine may be late.
SHORTEST_SILENCE_SECONDS = 15.0


def longest_silence() -> timedelta:
    """How long a node that announces itself may be silent before it is offline."""
    return timedelta(seconds=max(MISSED_BEATS * settings.MESHNET_ANNOUNCE_SECONDS, SHORTEST_SILENCE_SECONDS))


class NodeQuerySet(models.QuerySet["Node"]):
    def announcing(self, now: datetime) -> NodeQuerySet:
        """Nodes that announce themselves and have missed no more beats than they may."""
        return self.filter(announced_at__gt=now - longest_silence(), left_at__isnull=True)


class Node(models.Model):
    """One node by its URL, with what it said of itself when it was last seen."""

    url = models.URLField(unique=True)
    boot_id = models.CharField(max_length=64, blank=True, help_text="New at every start of the node.")
    model_name = models.CharField(max_length=255, blank=True)
    fingerprint = models.CharField(max_length=255, blank=True)
    start_layer = models.PositiveIntegerField(null=True, blank=True)
    end_layer = models.PositiveIntegerField(null=True, blank=True)
    dtype = models.CharField(max_length=32, blank=True)
    device = models.CharField(max_length=32, blank=True)
    version = models.CharField(max_length=32, blank=True)
    added_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField(null=True, blank=True, help_text="When the node last answered.")
    is_removed = models.BooleanField(default=False, help_text="An operator took it out: no route uses it.")
    announced_at = models.DateTimeField(
        null=True, blank=True, db_index=True, help_text="Its last announcement; empty for a node that makes none."
    )
    announced_from = models.GenericIPAddressField(null=True, blank=True, help_text="Where that came from.")
    left_at = models.DateTimeField(null=True, blank=True, help_text="When it said good-bye.")
    state = models.CharField(max_length=16, blank=True, help_text="By its last announcement: ready, draining, leaving.")
    max_sessions = models.PositiveIntegerField(null=True, blank=True)
    sessions = models.PositiveIntegerField(null=True, blank=True, help_text="Held at its last announcement.")

    objects = NodeQuerySet.as_manager()

    class Meta:
        ordering = ("start_layer", "url")
        permissions = (
            ("limit_node", "Can change the limits of running nodes"),
            ("drain_node", "Can drain and remove nodes"),
        )

    def __str__(self) -> str:
        return self.url

    @property
    def layers(self) -> str:
        return "" if self.start_layer is None else f"{self.start_layer}:{self.end_layer}"


class LayerReservation(models.Model):
    """Layers promised to a machine that is about to join, so that the next one gets others.

    The row with an empty URL promises nothing: whoever chooses layers holds its lock meanwhile.
    """

    url = models.CharField(max_length=200, unique=True)
    fingerprint = models.CharField(max_length=255, blank=True)
    start_layer = models.PositiveIntegerField()
    end_layer = models.PositiveIntegerField()
    until = models.DateTimeField()

    class Meta:
        default_permissions = ()  # nobody looks at them

    def __str__(self) -> str:
        return f"{self.url} {self.start_layer}:{self.end_layer}"


class NodeSample(models.Model):
    """One node's numbers at the end of one interval: written by keepers only, one row per node and interval."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="samples")
    at = models.DateTimeField(db_index=True, help_text="The interval's end, the same for every keeper.")
    sessions = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField()
    evictions = models.PositiveBigIntegerField(help_text="Since the node's start, all reasons together.")
    tokens = models.PositiveBigIntegerField(help_text="Positions computed since the node's start.")

    class Meta:
        constraints = (models.UniqueConstraint(fields=("node", "at"), name="one_sample_per_interval"),)
        ordering = ("at",)

    def __str__(self) -> str:
        return f"{self.node_id} {self.at:%H:%M:%S}"


class Mesh(models.Model):
    """The mesh as a whole. Nothing is stored: this row gives the overview its place in the admin and a permission."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        verbose_name = "mesh overview"
        verbose_name_plural = "mesh overview"

    def __str__(self) -> str:
        return "mesh"


class KVSession(models.Model):
    """A live session on the nodes. Nothing is stored: this row gives the admin an entry and a permission."""

    class Meta:
        managed = False
        default_permissions = ("view",)
        permissions = (("evict_kvsession", "Can evict live sessions from the nodes"),)
        verbose_name = "live session"
        verbose_name_plural = "live sessions"

    def __str__(self) -> str:
        return f"live session {self.pk}"
