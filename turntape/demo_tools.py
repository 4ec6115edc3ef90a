"""The tools of the demonstration's agent: three for files, all of them in one folder, and a calculator."""

import ast
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from attrs import frozen

MAX_FILE_BYTES = 64 * 1024
MAX_EXPRESSION = 200
MAX_EXPONENT = 64

FILES = {
    "orders.csv": "customer,article,count\nAda,widget,3\nGrace,gadget,2\nEdsger,gizmo,1\n",
    "prices.csv": "article,price\nwidget,19.50\ngadget,7.25\ngizmo,120.00\n",
}
"""What the folder holds before the agent comes."""


def _function(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A function tool whose parameters are all required strings."""
    return {
        "type": "function",
        "name": name,
        "description": description,
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": "string", "description": text} for key, text in parameters.items()},
            "required": list(parameters),
            "additionalProperties": False,
        },
    }


TOOLS = [
    _function("list_files", "List the files in the folder, with their sizes."),
    _function("read_file", "Read a text file.", path="its name"),
    _function(
        "write_file", "Write a text file; an old one of that name is replaced.", path="its name", content="the text"
    ),
    _function(
        "calculate", "Work out an arithmetic expression.", expression="numbers, + - * / // % **, and parentheses"
    ),
]


class ToolError(Exception):
    """The tool could not do it; the model reads why, and may try again."""


@frozen
class Toolbox:
    """The tools, at work in ``folder`` and nowhere else."""

    folder: Path

    def fill(self) -> None:
        for name, text in FILES.items():
            (self.folder / name).write_text(text, encoding="utf-8")

    def call(self, name: str, arguments: str) -> str:
        """The output for the model; a failure is an output too.

        Args:
            arguments: JSON, as the model wrote it.
        """
        try:
            return self._call(name, _object(arguments))
        except ToolError as exc:
            return f"error: {exc}"
        except OSError as exc:
            return f"error: {exc.strerror}"

    def _call(self, name: str, given: dict[str, Any]) -> str:
        match name:
            case "list_files":
                paths = sorted(self.folder.iterdir())
                return "\n".join(f"{path.name} ({path.stat().st_size} bytes)" for path in paths) or "no files"
            case "read_file":
                path = self._path(given)
                if path.stat().st_size > MAX_FILE_BYTES:
                    raise ToolError(f"the file is larger than {MAX_FILE_BYTES} bytes")
                return path.read_text(encoding="utf-8", errors="replace")
            case "write_file":
                path, content = self._path(given), _text(given, "content")
                if len(content) > MAX_FILE_BYTES:
                    raise ToolError(f"the content is longer than {MAX_FILE_BYTES} characters")
                path.write_text(content, encoding="utf-8")
                return f"wrote {len(content.encode())} bytes to {path.name}"
            case "calculate":
                return f"{calculate(_text(given, 'expression')):.10g}"
        raise ToolError(f"there is no tool {name!r}")

    def _path(self, given: dict[str, Any]) -> Path:
        """A file directly in the folder, links followed."""
        name = _text(given, "path")
        path = self.folder if "\0" in name else (self.folder / name).resolve()
        if path.parent != self.folder.resolve():
            raise ToolError(f"{name!r} is outside of the folder")
        return path


def _object(arguments: str) -> dict[str, Any]:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError as exc:
        raise ToolError(f"the arguments are not JSON: {exc}") from None
    if not isinstance(value, dict):
        raise ToolError("the arguments should be a JSON object")
    return value


def _text(given: dict[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str):
        raise ToolError(f"{key!r} should be a string")
    return value


OPERATORS: dict[type[ast.AST], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}


def calculate(expression: str) -> float:
    """The value of an arithmetic expression: numbers, signs, operators and parentheses, nothing else.

    Raises:
        ToolError: it is not that, or too large, or has no finite value.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ToolError(f"the expression is longer than {MAX_EXPRESSION} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise ToolError(f"{expression!r} is not an arithmetic expression") from None
    except ArithmeticError as exc:
        raise ToolError(f"{expression!r} has no value: {exc}") from None
    if not math.isfinite(value):
        raise ToolError(f"{expression!r} has no finite value")
    return value


def _value(node: ast.expr) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            a, b = _value(left), _value(right)
            if isinstance(op, ast.Pow) and (abs(b) > MAX_EXPONENT or (a < 0 and b != int(b))):
                raise ToolError(f"{a:g} ** {b:g} is more than this calculator does")
            return OPERATORS[type(op)](a, b)
    raise ValueError(ast.dump(node))
