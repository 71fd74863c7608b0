"""`manage.py mesh`: a mesh of heads on this machine and nodes under an engine, in the foreground.

1. Refuse what cannot work: another mesh on this var folder, taken ports, more shards than layers, an address of no
   cluster.
2. Fetch the model if it is missing, migrate, make this start's key, secrets and admin user.
3. Start heads and nodes, wait until all answer, write `mesh.json`, say where everything is.
4. Look after them until Ctrl-C, SIGTERM or SIGHUP; then end them in order and remove `mesh.json`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection, connections

from meshsite import control_socket, engines, load_watch, local_mesh
from meshsite.autoscaling import Autoscaling
from meshsite.control_socket import ControlSocket
from meshsite.engine import EngineRefused, NodeEngine, NodeSpec, Wait
from meshsite.launcher import Launcher
from meshsite.load_watch import LoadWatch
from meshsite.local_mesh import MeshRefused, Plan, Seating, Secrets
from meshsite.mesh_announcement import announcement, starting_line
from meshsite.mesh_processes import head_specs, node_specs
from meshsite.mesh_record import MeshRecord
from meshsite.parent_death import follow_parent
from meshsite.planned_nodes import as_planned
from meshsite.planned_split import plan_split
from meshsite.replicas import Replicas
from meshsite.scaler import Scaler
from meshsite.stop_signals import Stopped, StopSignals
from meshsite.supervisor import ChildSpec, StartFailed, Supervisor
from nodes.errors import ModelUnavailable
from nodes.mesh_file import MeshFile
from nodes.model_files import DEFAULT_MODEL, is_hub_id, layer_count, locate

#: How often the children are looked at once they serve, in seconds.
WATCH_SECONDS = 0.5
#: Nodes as they are told, to nodes as they suit their machines.
Fit = Callable[[Sequence[NodeSpec]], Sequence[NodeSpec]]


class Command(BaseCommand):
    help = "Starts a mesh (a head, and nodes that share the layers) in the foreground until Ctrl-C."
    # The children check the settings as they will see them; what is set for this process is not what they get.
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own declaration

    #: Exchanged by tests, which start cheap children and ask for the stop themselves.
    head_specs: Callable[..., list[ChildSpec]] = staticmethod(head_specs)
    engine: Callable[..., NodeEngine] | None = None
    signals: Callable[[], Any] = StopSignals

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--model", default=None, help="Name, folder or hub id. Default: MESHNET_MODEL.")
        parser.add_argument("--shards", type=int, default=2, help="How many nodes share the layers (2).")
        parser.add_argument("--layers", default=None, help="The stretches themselves, such as 0:10,10:30.")
        parser.add_argument("--replicas", type=int, default=1, help="How many nodes hold each stretch of layers (1).")
        parser.add_argument(
            "--max-replicas",
            type=int,
            default=None,
            help="Add replicas up to this number when generations wait for long, and take them away again (off).",
        )
        parser.add_argument("--heads", type=int, default=1, help="How many heads answer, on one database (1).")
        parser.add_argument(
            "--engine",
            choices=engines.NAMES,
            default="local",
            help="What runs the nodes: this machine, or Ray (local).",
        )
        parser.add_argument(
            "--address",
            default="",
            help="Of the Ray cluster: host:port, or auto for the one that runs on this machine. Default: RAY_ADDRESS; "
            "without it one is started here, for this mesh alone.",
        )
        parser.add_argument("--host", default=local_mesh.HOST, help="The heads' address, for nodes on Ray (127.0.0.1).")
        parser.add_argument("--port", type=int, default=8000, help="The head's port (8000); nodes take the next ones.")
        parser.add_argument(
            "--json", action="store_true", help="Print one line of JSON when ready, the rest to stderr."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        self._json = bool(options["json"])
        # Logs and database are for whoever starts the mesh, as mesh.json is; the children inherit it.
        os.umask(0o077)
        if settings.ROLE != "head":
            raise CommandError("MESHNET_ROLE is set: unset it, a local mesh gives each of its processes its own.")
        try:
            with self.signals() as stop, local_mesh.only_mesh(settings.MESHNET_VAR_DIR):
                self._run(options, stop)
        except Stopped:
            self._say("Stopped before the mesh was ready.")
        except (MeshRefused, StartFailed, EngineRefused, control_socket.ControlRefused) as error:
            raise CommandError(str(error)) from None
        except ModelUnavailable as error:
            raise CommandError(error.detail) from None
        except Error as error:
            raise CommandError(f"The database cannot be used: {error}. Is DATABASE_URL right?") from None

    def _run(self, options: dict[str, Any], stop: Any) -> None:
        var_dir: Path = settings.MESHNET_VAR_DIR
        if self.engine is None:
            engines.check(options["engine"], options["address"], os.environ)
        model, name, folder = self._model(options["model"] or settings.MESHNET_MODEL, options, stop)
        plan = _plan(model, layer_count(folder), options)
        local_mesh.check_ports(plan)
        made = Secrets()
        mesh = self._prepare(plan, made)
        if stop.wait(0):
            raise Stopped()
        record = MeshRecord(mesh, var_dir, _forget)
        with (
            Supervisor(self.head_specs(plan, made, os.environ), var_dir / "logs", self._say) as heads,
            LoadWatch(plan.head_urls, self._say, scrape=_scrape) as load,
        ):
            engine = self._engine(options)(plan, made, os.environ, self._say)
            plan, fit = self._by_capacity(engine, plan, options, stop.wait)
            scaler = self._scaler(engine, plan, made, fit, options["max_replicas"], load)
            launcher = Launcher(heads, engine, scaler, record, self._say)
            self._say(starting_line(plan, name))
            try:
                if not launcher.start(stop.wait):
                    raise Stopped()
                if options["max_replicas"] is not None:
                    load.start()
                with ControlSocket(var_dir, scaler.answer):
                    self._announce(plan, record.mesh, name, launcher.pids())
                    while not stop.wait(WATCH_SECONDS):
                        launcher.step()
                self._say("Ending the mesh …")
            finally:
                local_mesh.remove_mesh_file(var_dir)
                load.stop()  # heads that end are no news
                launcher.stop(stop.wait)
        self._say("The mesh has ended.")

    def _by_capacity(self, engine: NodeEngine, plan: Plan, options: dict[str, Any], wait: Wait) -> tuple[Plan, Fit]:
        """The plan as it suits the engine's machines, and what that makes of nodes. Processes of this machine share it
        evenly. Raises EngineRefused or Stopped, having ended the engine.
        """
        if options["engine"] == "local":
            return plan, lambda specs: specs
        self._say("Measuring the machines …")
        try:
            stages = plan_split(
                plan.model,
                len(plan.stretches),
                engine.machines(),
                layers=plan.stretches if options["layers"] else None,
                replicas=plan.replicas,
                dtype=settings.MESHNET_DTYPE,
                context_length=settings.MESHNET_CONTEXT_LENGTH,
                wait=wait,
            )
        except (EngineRefused, Stopped):
            engine.stop(lambda seconds: True)
            raise
        stretches = tuple(stage.layers for stage in stages)
        return replace(plan, stretches=stretches), lambda specs: as_planned(specs, stages, os.environ)

    def _scaler(
        self, engine: NodeEngine, plan: Plan, made: Secrets, fit: Fit, most: int | None, load: LoadWatch
    ) -> Scaler:
        seating = Seating(plan)
        replicas = Replicas(
            engine,
            lambda number: fit(node_specs(plan, made, os.environ, seating.seats(number), cores=engines.cores())),
            self._say,
            wanted=plan.replicas,
            most=most or local_mesh.MOST_REPLICAS,
        )
        autoscaling = None if most is None else Autoscaling(plan.replicas, most)
        return Scaler(replicas, self._say, autoscaling=autoscaling, look=load.latest)

    def _engine(self, options: dict[str, Any]) -> Callable[..., NodeEngine]:
        if self.engine is not None:
            return self.engine
        if options["engine"] == "ray":
            return functools.partial(engines.ray_engine, address=options["address"])
        return engines.local_engine

    def _model(self, model: str, options: dict[str, Any], stop: Any) -> tuple[str, str, Path]:
        """What MESHNET_MODEL is set to, the name for clients, and the folder; fetched first when it is missing."""
        var_dir: Path = settings.MESHNET_VAR_DIR
        try:
            name, folder, commit = locate(model, var_dir, download=False)
        except ModelUnavailable:
            if model != DEFAULT_MODEL and not is_hub_id(model):
                raise
            # What can be refused before minutes of fetching is refused now; the number of layers is not known yet.
            local_mesh.check_ports(_plan(model, None, options))
            self._say(f"The model {model} is not here yet.")
            self._fetch(model, stop)
            name, folder, commit = locate(model, var_dir, download=False)
        # A folder is passed on as a path: the children run in another working folder.
        known_by_name = commit is not None or folder.parent == (var_dir / "models").resolve()
        return (name if known_by_name else str(folder)), name, folder

    def _fetch(self, model: str, stop: Any) -> None:
        """`manage.py fetch_model` as a process, whose torch does not stay in this one's memory."""
        command = [sys.executable, "manage.py", "fetch_model", model]
        process = subprocess.Popen(  # noqa: S603  # a command of our own
            command,
            cwd=settings.BASE_DIR,
            env={**os.environ, "MESHNET_VAR_DIR": str(settings.MESHNET_VAR_DIR)},
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr if self._json else None,
            process_group=0,
            preexec_fn=follow_parent(os.getpid(), signal.SIGTERM),  # calls prctl and nothing else
        )
        while process.poll() is None:
            if stop.wait(0.2):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
                try:
                    process.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                raise Stopped()
        if process.returncode != 0:
            raise MeshRefused("The model could not be fetched; the reason stands above.")

    def _prepare(self, plan: Plan, made: Secrets) -> MeshFile:
        from meshsite import local_access  # here, since its models exist in a head's process only

        self._say("Migrating the database …")
        call_command("migrate", interactive=False, verbosity=0)
        # A user whose password is printed is for this machine alone.
        is_here = local_access.is_loopback(plan.host)
        key = local_access.prepare(plan.head_urls, plan.node_urls, made.admin_password if is_here else None)
        connections.close_all()
        mesh = local_mesh.mesh_file(plan, made, key, local_access.ADMIN_USER)
        return mesh if is_here else replace(mesh, admin_user="", admin_password="")

    def _announce(self, plan: Plan, mesh: MeshFile, name: str, pids: dict[str, int]) -> None:
        if self._json:
            line = {**mesh.as_json(), "model": name, "pids": {"mesh": os.getpid(), **pids}}
            self.stdout.write(json.dumps(line))
            self.stdout.flush()
            return
        self._say(announcement(plan, mesh, name))

    def _say(self, text: str) -> None:
        stream = self.stderr if self._json else self.stdout
        # No style: progress on standard error is not an error.
        stream.write(text, style_func=lambda line: line)
        stream.flush()


def _scrape(head_url: str) -> str:
    return load_watch.scrape(head_url, settings.MESHNET_METRICS_TOKEN)


def _forget(urls: Collection[str]) -> bool:
    """Deletes rows of nodes that are gone; False when the database could not be used, or somebody holds its lock."""
    from meshsite import local_access

    try:
        local_access.wait_briefly(connection)  # a Ctrl-C and the children's ends are seen after it
        local_access.forget_nodes(urls)
    except Error:
        return False
    finally:
        connections.close_all()  # children must not inherit one
    return True


def _plan(model: str, n_layers: int | None, options: dict[str, Any]) -> Plan:
    """`n_layers` is None as long as the model is not here."""
    if not 1 <= options["heads"] <= local_mesh.MOST_HEADS:
        raise MeshRefused(f"--heads {options['heads']}: a mesh has 1 to {local_mesh.MOST_HEADS} heads.")
    most = options["max_replicas"]
    if most is not None and not options["replicas"] <= most <= local_mesh.MOST_REPLICAS:
        bounds = f"--replicas ({options['replicas']}) and {local_mesh.MOST_REPLICAS}"
        raise MeshRefused(f"--max-replicas {most}: that lies between {bounds}.")
    layers = options["layers"]
    return local_mesh.make_plan(
        model,
        max(options["shards"], 1) if n_layers is None else n_layers,
        options["shards"],
        options["port"],
        settings.MESHNET_VAR_DIR,
        settings.BASE_DIR,
        replicas=options["replicas"],
        heads=options["heads"],
        stretches=None if layers is None else local_mesh.parse_stretches(layers, n_layers),
        local_nodes=options["engine"] == "local",
        host=options["host"],
    )
