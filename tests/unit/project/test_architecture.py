"""Holds the arrows between packages, what an import loads, and the public names."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ("mergers", "lakemerge", "compaction")
TABLE = ROOT / "lakemerge" / "table" / "table.py"
SPARK_DOORS = (
    "lakemerge.connector.session",
    "lakemerge.connector.source",
    "lakemerge.convert.spark",
    "lakemerge.datasource",
    "lakemerge.spark",
    "lakemerge.flows.spark",
    "lakemerge.ingest.spark",
    "lakemerge.merge_source.spark",
    "lakemerge.transactions.spark",
    "pyspark_lakemerge",
    "pyspark_lakemerge_catalog",
)
LOOSE = {
    "bins",
    "errors",
    "events",
    "frames",
    "handle",
    "openlineage",
    "options",
    "python_values",
    "quantities",
    "spark_errors",
}
LAYERS = (
    ("mergers", "lakemerge.errors", "lakemerge.sql"),
    (
        *(
            f"lakemerge.{name}"
            for name in (
                "_internal",
                "bins",
                "events",
                "openlineage",
                "options",
                "quantities",
                "results",
                "spark_errors",
            )
        ),
    ),
    ("lakemerge.storage",),
    ("lakemerge.delta",),
    ("lakemerge.schema",),
    ("lakemerge.format",),
    ("lakemerge.layout",),
    ("lakemerge.frames", "lakemerge.handle", "lakemerge.python_values"),
    (*(f"lakemerge.{name}" for name in ("commits", "feed", "read", "spark", "transactions", "write")),),
    ("lakemerge.table",),
    ("compaction", "lakemerge.check"),
    ("lakemerge.convert", "lakemerge.datasource", "lakemerge.ingest", "lakemerge.provenance"),
    ("lakemerge.table.table",),
    (
        "lakemerge",
        *(f"lakemerge.{name}" for name in ("connector", "flows", "merge_source", "report", "testing")),
    ),
    ("lakemerge.cli", "lakemerge.__main__", "pyspark_lakemerge", "pyspark_lakemerge_catalog"),
)
"""Packages and modules from the bottom up. A module imports what stands in its layer or below."""
CLI_COMMANDS = tuple(
    f"lakemerge.cli.{name}"
    for name in (
        "app", "common", "conversion", "demo", "forget", "ingest", "merge_source", "output", "provenance", "rows",
        "service", "streams", "tables", "warehouse",
    )
)  # fmt: skip
SHIPPED_SUITES = ("lakemerge.testing", "mergers.testing")
HEAVY = frozenset(
    {
        "adlfs",
        "azure",
        "gcsfs",
        "google",
        "datasketches",
        "deltalake",
        "duckdb",
        "pandas",
        "polars",
        "pyroaring",
        "pyspark",
        "rich",
        "s3fs",
        "typer",
    }
)

ERRORS = {
    "CommitConflictError": "retry: another commit made this one invalid",
    "CompactFirstError": "retry: after a compaction",
    "DatasetsMissingError": "fix the input: the table of a merge source's dataset is not there",
    "DatasetsRemovedError": "fix the input: a merge source's datasets, or a full run",
    "DatasetsReorderedError": "fix the input: the order of a merge source's datasets",
    "DependencyMissingError": "install: an extra of this package",
    "FilterError": "fix the input: the filter",
    "FrameError": "fix the input: the frame of a write",
    "FullRunNeededError": "fix the input: a merge source's run must be a full one",
    "IdCollisionError": "fix the input: ids that a merge source cannot tell apart",
    "InputError": "catches everything that the caller can fix",
    "InstallError": "catches everything that an installation or registration fixes",
    "LakeMergeError": "the root: catches everything",
    "MaxRetiredError": "fix the data: rows of a merge source's datasets are gone",
    "MaxMergedError": "fix the data: a value that too many entities share",
    "MergeConfigError": "fix the input: a merge source's configuration",
    "MergeOverflowError": "fix the data: a total that its column cannot hold",
    "MergeValueError": "fix the data: a stored value that cannot be merged",
    "MergerConfigurationError": "fix the input: merger or options",
    "MergerContractError": "fix the merger",
    "MergerMissingError": "install: register the table's merger",
    "MergerRegistrationError": "fix the input: the id or name of a merger class",
    "NotATableError": "fix the input: the path",
    "OutcomeUnknownError": "retry: look first whether the commit landed",
    "RecordRefusedError": "fix the input: a record the merger does not take",
    "RetryError": "catches everything worth another attempt",
    "SchemaError": "fix the input: the schema",
    "StoreError": "fix the table: another store",
    "TableDamagedError": "fix the table: restore or repair",
    "TableError": "catches everything that is wrong with a table",
    "TableExistsError": "fix the input: the path",
    "TableReplacedError": "open the table again",
    "UnsupportedFeatureError": "fix the table, or upgrade",
    "VersionNotFoundError": "fix the input: version or timestamp",
}

# A name is public because a user types it; anything else is imported from the module that defines it.
PUBLIC = {
    "lakemerge": ERRORS
    | {
        "DELETE": "what a row merger returns for a key that goes away",
        "Delete": "the type of DELETE, for annotations",
        "CheckResult": "what LakeTable.check returns",
        "Finding": "what CheckResult.findings holds",
        "CompactionPlan": "what LakeTable.compact returns for dry_run",
        "CompactionResult": "what LakeTable.compact returns",
        "CompactionStrategy": "says which base files are due for a compaction",
        "ExpiryResult": "what LakeTable.expire_tombstones returns",
        "LakeTable": "the table: every operation starts here",
        "Laws": "declares which plans a user's merger allows",
        "Traits": "says what a user's merger is, for writers and plans",
        "LogCompactionResult": "what LakeTable.compact_logs returns",
        "MaintenanceResult": "what LakeTable.maintain returns",
        "Merger": "base class of a user's merger",
        "Record": "what a row merger is given, for annotations",
        "RestoreResult": "what LakeTable.restore returns",
        "RescaleResult": "what LakeTable.rescale returns",
        "RowKind": "the values of a kind column",
        "RowMerger": "base class of a user's merger of two rows",
        "Savepoint": "what LakeTable.savepoints lists",
        "Event": "tells a listener of a call",
        "listen": "gives calls of tables to metrics",
        "ReadPolicy": "when reads through Spark premerge",
        "Settings": "limits and sizes of writers and readers",
        "FailedKey": "what LakeTable.failed_keys lists",
        "FailedKeys": "what LakeTable.failed_keys returns",
        "FailedRecord": "what FailedKey.records and SkippedFileSlice.records hold",
        "SkippedFileSlice": "what CompactionResult.skipped holds",
        "ConversionPlan": "what LakeTable.convert returns for dry_run",
        "ConversionResult": "what LakeTable.convert returns",
        "CopyResult": "what LakeTable.copy_to returns",
        "VacuumResult": "what LakeTable.vacuum returns",
        "ForgetResult": "what LakeTable.forget returns",
        "TransactionPlan": "what LakeTable.update_where and others return for explain",
        "UnconversionResult": "what LakeTable.unconvert returns",
        "UpsertResult": "what LakeTable.upsert returns",
        "catalog": "gives tables names in Spark's SQL",
        "register": "gives merger classes to Spark's format('lakemerge')",
        "register_merger": "makes a user's merger known by its id",
        "unwrap_error": "our error in an exception of Spark",
        "unwrap_errors": "raises our error in place of Spark's",
    },
    "lakemerge.errors": ERRORS,
    "lakemerge.flows": {
        "auto_cdc": "takes up events of a change capture",
        "auto_cdc_from_snapshot": "takes up whole snapshots",
        "history": "the rows of a target of type 2 through time, without Spark",
        "history_df": "the same on Spark",
    },
    "lakemerge.provenance": {
        "DeliveryCheck": "what MergerVerification.checks holds",
        "Explanation": "what LakeTable.explain returns",
        "Lineage": "what LakeTable.lineage returns",
        "LineageEvent": "what Lineage holds",
        "MergerVerification": "what LakeTable.verify_merger returns",
        "RefutedLaw": "what DeliveryCheck.counterexample is",
        "ReplayResult": "what LakeTable.replay returns",
        "Step": "what Explanation.steps holds",
        "WhatIf": "what LakeTable.what_if returns",
    },
    "lakemerge.ingest": {
        "Archive": "where files go afterwards, and how long they stay",
        "Bins": "how files are gathered before they are worth a commit",
        "Files": "the files of folders, or of a list",
        "Fragments": "sets of files that belong together",
        "IngestFile": "what IngestJob.files lists",
        "IngestJob": "what LakeTable.ingest returns",
        "IngestResult": "what IngestJob.run returns",
        "IngestStatus": "what IngestJob.status returns",
    },
}


@dataclass(frozen=True, slots=True)
class Import:
    """One import of ``target`` (a dotted name) by the module ``source``."""

    source: str
    target: str
    line: int
    in_function: bool
    for_types: bool
    """Under ``if TYPE_CHECKING``: nothing is loaded when the program runs."""

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target}"

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def inside(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def product_files() -> list[Path]:
    files = [path for package in PRODUCT for path in (ROOT / package).rglob("*.py")]
    return sorted([*files, *ROOT.glob("pyspark_*.py")])


def imports_of(tree: ast.AST, source: str) -> Iterator[Import]:
    def visit(node: ast.AST, in_function: bool, for_types: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(source, alias.name, node.lineno, in_function, for_types)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{source}:{node.lineno}: a relative import"
            for alias in node.names:
                yield Import(source, f"{node.module}.{alias.name}", node.lineno, in_function, for_types)
        elif isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.body:
                yield from visit(statement, in_function, True)
            for statement in node.orelse:
                yield from visit(statement, in_function, for_types)
        else:
            if isinstance(node, ast.Call) and is_import_call(node) and isinstance(node.args[0], ast.Constant):
                yield Import(source, str(node.args[0].value), node.lineno, in_function, for_types)
            function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, function, for_types)

    return visit(tree, False, False)


def is_import_call(call: ast.Call) -> bool:
    return bool(call.args) and ast.unparse(call.func).rpartition(".")[2] in ("import_module", "__import__")


@cache
def product_imports() -> tuple[Import, ...]:
    return tuple(
        found
        for path in product_files()
        for found in imports_of(ast.parse(path.read_text(), str(path)), module_name(path))
    )


def test_the_reader_of_imports_sees_every_kind() -> None:
    code = (
        "import a.b\nfrom c import d\nif TYPE_CHECKING:\n    import e\nelse:\n    import f\n"
        "class K:\n    def m(self):\n        import g\nif True:\n    from h.i import j\n"
        "def f():\n    return importlib.import_module('k.l')\n"
    )
    found = {(item.target, item.in_function, item.for_types) for item in imports_of(ast.parse(code), "m")}
    assert found == {
        ("a.b", False, False), ("c.d", False, False), ("e", False, True), ("f", False, False), ("g", True, False),
        ("h.i.j", False, False), ("k.l", True, False),
    }  # fmt: skip


def test_mergers_know_nothing_of_tables() -> None:
    """Not even for types: a merger must be usable, and testable, without a table. SQL expressions know none either."""
    beside = {"mergers": ("lakemerge.sql",), "lakemerge.sql": ("lakemerge.sql", "lakemerge.errors")}
    wrong = [
        item
        for item in product_imports()
        for source, targets in beside.items()
        if inside(item.source, (source,))
        and item.top in ("lakemerge", "compaction", "pyspark", "pyspark_lakemerge")
        and not inside(item.target, targets)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_pyspark_stays_behind_its_door() -> None:
    wrong = [
        item
        for item in product_imports()
        if item.top == "pyspark" and not inside(item.source, SPARK_DOORS) and not item.for_types
    ]
    assert not wrong, "\n".join(map(str, wrong))


def layer_of(module: str) -> int:
    ranks = {name: rank for rank, names in enumerate(LAYERS) for name in names}
    while module not in ranks:
        module = module.rpartition(".")[0]
    return ranks[module]


@cache
def arrows() -> frozenset[tuple[str, str]]:
    """Modules and the modules of ours that they import. Imports inside functions count, and those for types."""
    modules = {module_name(path) for path in product_files()}
    found = ((i.source, i.target if i.target in modules else i.target.rpartition(".")[0]) for i in product_imports())
    return frozenset((source, target) for source, target in found if target in modules and source != target)


def test_modules_import_no_layer_above() -> None:
    wrong = sorted(f"{source} imports {target}" for source, target in arrows() if layer_of(source) < layer_of(target))
    assert not wrong, "\n".join(wrong)


def test_modules_do_not_import_each_other_in_circles() -> None:
    below: dict[str, set[str]] = {}
    for source, target in arrows():
        below.setdefault(source, set()).add(target)
    while leaves := {name for names in below.values() for name in names} - below.keys():
        below = {name: names - leaves for name, names in below.items()}
        below = {name: names for name, names in below.items() if names}
    circles = "\n".join(f"{name} imports {', '.join(sorted(names))}" for name, names in sorted(below.items()))
    assert not below, circles


def test_few_modules_stand_loose() -> None:
    loose = {path.stem for path in (ROOT / "lakemerge").glob("*.py")} - {"__init__", "__main__"}
    assert loose == LOOSE


def test_the_log_knows_the_delta_protocol_only() -> None:
    allowed = (
        "lakemerge.delta", "lakemerge.storage", "lakemerge.errors", "lakemerge._internal.collector",
        "lakemerge._internal.parquet", "lakemerge._internal.pools", "lakemerge._internal.version", "mergers.logs",
        "mergers.wording",
    )  # fmt: skip
    wrong = [
        item
        for item in product_imports()
        if inside(item.source, ("lakemerge.delta",)) and item.top in PRODUCT and not inside(item.target, allowed)
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_one_module_makes_pools_of_threads() -> None:
    """A scheduler of tests makes all of them work in order."""
    wrong = {path.name for path in product_files() if "ThreadPoolExecutor" in path.read_text()}
    assert wrong == {"pools.py"}


def test_sql_is_compiled_in_one_package() -> None:
    """Others may look for names in SQL text. What an expression means, only ``lakemerge.sql`` knows."""
    found = {item.source for item in product_imports() if item.top == "sqlglot"}
    names = {"lakemerge.spark.names", "lakemerge.transactions.clauses"}
    assert {module for module in found if not inside(module, ("lakemerge.sql",))} == names


def test_the_product_does_not_import_tests_or_benchmarks() -> None:
    wrong = [item for item in product_imports() if item.top in ("tests", "benchmarks")]
    assert not wrong, "\n".join(map(str, wrong))


def test_nothing_is_imported_by_a_computed_name() -> None:
    """Names in table metadata come from strangers; code that can import by name could import them. A package's lazy
    names stand in its own code."""
    wrong = [
        f"{module_name(path)}:{node.lineno} calls {ast.unparse(node.func)}"
        for path in product_files()
        if module_name(path) != "lakemerge._internal.lazy"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and (
            (is_import_call(node) and not isinstance(node.args[0], ast.Constant))
            or ast.unparse(node.func) in ("eval", "exec")
        )
    ]
    assert not wrong, "\n".join(wrong)


def loaded_by(modules: list[str]) -> set[str]:
    """The top-level names of everything in ``sys.modules`` of a new interpreter that imported ``modules``."""
    lines = [f"import {module}" for module in modules]
    code = "\n".join(["import sys", *lines, "print(*{name.partition('.')[0] for name in sys.modules})"])
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_lakemerge_is_light() -> None:
    loaded = loaded_by(["lakemerge"])
    assert "lakemerge" in loaded
    assert sorted(loaded & HEAVY) == []


def test_engines_and_stores_load_on_first_use() -> None:
    """Every module outside the Spark door, the commands and the shipped test suites imports without an extra."""
    modules = [module_name(path) for path in product_files()]
    doors = SPARK_DOORS + CLI_COMMANDS + SHIPPED_SUITES
    loaded = loaded_by([module for module in modules if not inside(module, doors)])
    assert set(PRODUCT) <= loaded
    assert sorted(loaded & HEAVY) == []


def test_mergers_load_without_tables() -> None:
    assert sorted(loaded_by(["mergers"]) & (HEAVY | {"lakemerge", "compaction"})) == []


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_public_names_are_those_with_a_reason(module: str) -> None:
    assert set(importlib.import_module(module).__all__) == set(PUBLIC[module])


def test_methods_of_the_table_are_thin() -> None:
    """What takes more than a few statements is a function of another module."""
    (table,) = (node for node in ast.parse(TABLE.read_text()).body if isinstance(node, ast.ClassDef))
    methods = [node for node in table.body if isinstance(node, ast.FunctionDef)]
    sizes = {node.name: sum(isinstance(each, ast.stmt) for each in ast.walk(node)) - 1 for node in methods}
    assert len(sizes) > 40
    assert not {name: size for name, size in sizes.items() if size > 12}


def test_public_modules_list_names_they_define() -> None:
    wrong = []
    for path in product_files():
        name = module_name(path)
        if inside(name, SPARK_DOORS) or any(part.startswith("_") for part in name.split(".")):
            continue
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None)
        defines = any(isinstance(node, (ast.ClassDef, ast.FunctionDef)) for node in ast.parse(path.read_text()).body)
        if names is None:
            if defines:
                wrong.append(f"{name} has no __all__")
            continue
        wrong += [f"{name}.__all__ names {item}, which is not there" for item in names if not hasattr(module, item)]
        if len(set(names)) != len(names):
            wrong.append(f"{name}.__all__ repeats a name")
    assert not wrong, "\n".join(wrong)
