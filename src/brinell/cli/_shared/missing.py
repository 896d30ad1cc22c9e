"""A command that names all required options that are missing in one message."""

from typing import Any

from typer.core import TyperCommand, TyperGroup


class Command(TyperCommand):
    """A command that checks its required options before it reads any of them."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters; the help shows no type behind a flag, which takes no value."""
        return without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments; fail if options are missing, with what they would be called."""
        message = "" if ctx.resilient_parsing else _missing(self, ctx, list(args))
        if message:
            ctx.fail(message)
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands whose help shows no types behind flags."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return without_types_of_flags(super().get_params(ctx))


def without_types_of_flags(params: list[Any]) -> list[Any]:
    """Return the parameters of a command after emptying the name of the value of every flag."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


def _missing(command: TyperCommand, ctx: Any, args: list[str]) -> str:
    """Return the message about missing options; "" if there are none, or if the help is asked for."""
    given, words, _ = command.make_parser(ctx).parse_args(args=args)
    params = command.get_params(ctx)
    missing = [p.opts[0] for p in params if p.param_type_name == "option" and p.required and p.name not in given]
    if not missing or any(p.is_eager and p.name in given for p in params):
        return ""
    meant = " ".join(f"{option} {word}" for option, word in zip(missing, words, strict=False))
    hint = f" Did you mean {meant}?" if words else ""
    return f"Missing option{'s' * (len(missing) > 1)}: {', '.join(missing)}.{hint}"
