"""Files of YAML or JSON that people write, read whole; what is wrong with one is said in a line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from millrace.errors import UserError

__all__ = ["MAX_FILE", "read_yaml"]

#: Largest file, bytes.
MAX_FILE: Final = 4_000_000


def read_yaml(path: Path, error: type[UserError] = UserError) -> Any:
    """Return what a file of YAML or JSON holds, as plain values.

    Args:
        path: The file.
        error: What is raised.

    Raises:
        UserError: It cannot be read, is too large, or is no YAML; says where and why.
    """
    import yaml

    try:
        if path.stat().st_size > MAX_FILE:
            raise error(f"{path} is larger than {MAX_FILE:,} bytes")
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as why:
        raise error(f"{path} cannot be read: {why.strerror}") from None
    except UnicodeDecodeError:
        raise error(f"{path} is no text of YAML or JSON") from None
    except RecursionError:
        raise error(f"{path}: nested too deeply") from None
    except yaml.YAMLError as why:
        mark, problem = getattr(why, "problem_mark", None), getattr(why, "problem", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise error(f"{where}: {problem or 'this is no YAML'}") from None
    except ValueError as why:  # such as a date that there is not
        raise error(f"{path}: {' '.join(str(why).split())}") from None
