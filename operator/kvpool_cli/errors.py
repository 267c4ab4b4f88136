"""How the command ends when it can't do what was asked; the exit codes stand in kvpool_cli.main."""

import click

EXIT_INPUT, EXIT_SKIPPED, EXIT_PROBLEM = 2, 3, 4


class InputError(click.ClickException):
    """One sentence on stderr."""

    exit_code = EXIT_INPUT
