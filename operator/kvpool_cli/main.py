"""The command's entry point: options in, text and exit codes out. The rules live in the modules that it
calls.

Exit codes: 0 done, 2 the user's input can't be used, 3 an object was left alone (the reason is on stderr),
4 a check has found a problem.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from kvpool_cli import injection, inspection, manifests, members, report
from kvpool_cli.errors import EXIT_PROBLEM, EXIT_SKIPPED, InputError
from kvpool_cli.manifests import ManifestError
from kvpool_cli.plan_command import plan_command
from kvpool_cli.prompts.command import why_miss_command
from kvpool_contract.reasons import explain
from kvpool_operator.desired.pool import PoolError
from kvpool_operator.desired.quantity import QuantityError
from kvpool_operator.inject import Settings

NEEDS_OPERATOR = (
    "pool {}: its members prove who they are by certificates, so their configuration comes from the operator: apply "
    "the pool, too. Without the operator set spec.transport.tls.mode: Disabled."
)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Share prefix KV-cache between the replicas of an LLM service."""


@main.command()
@click.option("-f", "--filename", required=True, help="Manifest with the engine's workload; - reads stdin.")
@click.option("--pool", "pool_file", required=True, help="File with the KVCachePool.")
@click.option("--image", default="", help="The agent's image, in place of the pool's spec.agent.image.")
@click.option(
    "--privileged",
    is_flag=True,
    help="The pods' namespace enforces Pod Security's privileged profile: their agents may get IPC_LOCK.",
)
def inject(filename: str, pool_file: str, image: str, privileged: bool) -> None:
    """Print the manifest with its workload joined to the pool, for `kubectl apply -f -`.

    The pool's headless Service comes first, and the ConfigMap of its members where they need no certificates; then
    every document of the manifest; what a workload's pods need of memory is said on stderr. A workload that can't join
    is named there with the reason; nothing is printed then, and the exit code is 3.
    """
    try:
        pool = injection.load_pool(_read(pool_file))
        settings = Settings(image=image, privileged=privileged)
        outcome = injection.inject_manifest(_read(filename), pool, settings)
    except (PoolError, ManifestError, QuantityError) as error:
        raise InputError(str(error)) from None
    if outcome.skipped:
        for name, reason in outcome.skipped:
            click.echo(f"{name}: {explain(reason)}", err=True)
        raise click.exceptions.Exit(EXIT_SKIPPED)
    for cost in outcome.costs:
        click.echo(cost, err=True)
    for name, reason in outcome.withheld:
        click.echo(f"{name}: {explain(reason)}", err=True)
    if outcome.needs_operator:
        click.echo(NEEDS_OPERATOR.format(pool.metadata.name), err=True)
    click.echo(outcome.text, nl=False)


@main.command()
@click.argument("file", default="")
@click.option("--secret", "secret_file", default="", help="With FILE: manifest of the Secret that its secretRef names.")
@click.option("--pool", "pool_name", default="", help="Look at this pool of the cluster, and at its members.")
@click.option("--pod", "pod_name", default="", help="Look at this pod: why it has no agent, or why it is not warm.")
@click.option("-n", "--namespace", default="", help="Kubernetes namespace (default: the context's own).")
@click.option("--kubeconfig", default="", help="Kubeconfig file in place of $KUBECONFIG or the default one.")
def check(file: str, secret_file: str, pool_name: str, pod_name: str, namespace: str, kubeconfig: str) -> None:
    """Say what is wrong, a sentence and a fix for each thing; the exit code is 4 then.

    With FILE (- reads stdin), whether it holds a KVCachePool that can be used, without a cluster; with --secret also
    whether the pool's members can prove who they are by that Secret. With --pool or --pod how these are; with none of
    them whether the cluster is fit and kvpool is installed in it.
    """
    if sum(map(bool, (file, pool_name, pod_name))) > 1:
        raise InputError("name a file, --pool or --pod; one of the three, or nothing for the cluster")
    if secret_file and not file:
        raise InputError("--secret goes with a file that holds the pool; name it, too")
    try:
        if file:
            _check_file(file, secret_file)
            return
        found = inspection.inspect(pool_name, pod_name, namespace, kubeconfig)
    except (PoolError, members.MembersError) as error:
        raise InputError(str(error)) from None
    for each in found:
        click.echo(str(each))
    if any(each.verdict == "problem" for each in found):
        raise click.exceptions.Exit(EXIT_PROBLEM)


def _check_file(file: str, secret_file: str) -> None:
    from kvpool_cli import certificate  # it loads cryptography, which no other command needs

    pool, about = injection.load_pool(_read(file)), ""
    if secret_file:
        try:
            about = certificate.check_secret(manifests.load(_read(secret_file))[0].content, pool, datetime.now(UTC))
        except (ManifestError, certificate.CertificateError) as error:
            raise InputError(str(error)) from None
    click.echo(f"pool {pool.metadata.name} in namespace {pool.metadata.namespace}: the spec is accepted")
    if about:
        click.echo(about)
    if pool.spec.transport.tls.mode == "Disabled":
        click.echo("its members speak in clear and ask nobody who they are (transport.tls.mode: Disabled)")


@main.command()
@click.argument("pool", default="")
@click.option("-n", "--namespace", default="", help="Kubernetes namespace of POOL (default: the context's own).")
@click.option("--members", "members_file", default="", help="File of host:port lines of agents' status ports.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--kubeconfig", default="", help="Kubeconfig file in place of $KUBECONFIG or the default one.")
def status(pool: str, namespace: str, members_file: str, output: str, kubeconfig: str) -> None:
    """Show what the agents of POOL say of themselves, one row each.

    The agents are found through the Kubernetes API, or named in a file with --members.
    """
    if bool(pool) == bool(members_file):
        raise InputError("name a pool, or a file with --members; one of the two")
    try:
        if members_file:
            answers = members.read_file(_read(members_file))
        else:
            answers = members.read_pool(pool, namespace, kubeconfig)
    except members.MembersError as error:
        raise InputError(str(error)) from None
    click.echo(report.as_json(answers) if output == "json" else report.as_table(answers), nl=False)


main.add_command(plan_command)
main.add_command(why_miss_command)


def _read(filename: str) -> str:
    try:
        if filename == "-":
            return sys.stdin.read()
        return Path(filename).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{filename} can't be read: {reason}") from None
