"""The ledger: what each data set may spend, and what it has. A budget cannot be overspent, whoever asks at once.

Every fit writes an intent before the first row is asked and a commit after the last. An intent counts as spent from the
moment it is written: a run that is killed stays charged. Plans are kept and composed again at each charge, so that ε
never is added up. A data set is known by the name its custodian gives it; nothing is stored that depends on its rows.
"""

import json
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from discreet.accounting import composed_epsilon, filtered_epsilon, flat
from discreet.plan import SAMPLINGS, Charge, Search, from_plain, phases, require, to_plain

APPLICATION, FORMAT, PATIENCE = 0x64697363, 2, 600.0
_TABLES = """
create table accounts (
  name text primary key, epsilon real not null, delta real not null, relation text not null,
  num_rows integer, adaptive integer not null, unit text not null, opened text not null
);
create table entries (
  id integer primary key autoincrement, account text not null references accounts (name),
  run text not null unique, plan text not null,
  purpose text not null, state text not null check (state in ('intent', 'committed')),
  charged text not null, committed text
);
"""


class LedgerError(ValueError):
    """The ledger does not allow this, or is none."""


class Budget(NamedTuple):
    """What a data set may spend in all: (epsilon, delta) under `relation`.

    With `num_rows` only plans for that many rows are charged: a plan for another table is a mistake. An `adaptive`
    account may let what was learned decide how much is spent next; composing privacy losses does not allow that, and a
    filter at one Rényi order, fixed when the account is opened, does. It costs a little. `unit` is whom the budget
    protects, as `Plan.unit` says: promises to rows and to people do not add up.
    """

    epsilon: float
    delta: float
    relation: str = "zero-out"
    num_rows: int | None = None
    adaptive: bool = False
    unit: str = "row"


class Entry(NamedTuple):
    """One charge of one run: `state` is "intent" until its release is complete, then "committed"."""

    run: str
    plan: Charge
    purpose: str
    state: str
    charged: str
    committed: str | None


class Account:
    """One data set's part of a ledger."""

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name
        with _opened(path) as db:
            found = db.execute(
                "select epsilon, delta, relation, num_rows, adaptive, unit from accounts where name = ?", (name,)
            ).fetchone()
            if found is None:
                known = ", ".join(row[0] for row in db.execute("select name from accounts order by name")) or "none"
                raise LedgerError(
                    f"{path} has no account {name!r} (it has: {known}): open it with discreet ledger init"
                )
        self.budget = Budget(*found)._replace(adaptive=bool(found[4]))

    def __repr__(self) -> str:
        return f"Account({self.name!r} in {self.path})"

    def entries(self) -> list[Entry]:
        """All charges, oldest first."""
        with _opened(self.path) as db:
            return _entries(db, self.name)

    def spent(self) -> float:
        """ε of everything charged so far, at the budget's δ."""
        return self._epsilon([entry.plan for entry in self.entries()])

    def charge(self, plan: Charge, purpose: str = "", run: str | None = None) -> str:
        """Write an intent, and give the name of its run; refused if it and all before it exceed the budget.

        A `run` that was charged before is not charged again: it goes on.

        Guarantee: whatever processes charge at once, the composed plans never cost more than the budget: reading the
        entries, composing them and writing the new one is one transaction that holds the ledger's only write lock.
        """
        self._check(plan)
        run = run or secrets.token_hex(16)
        with _writing(self.path) as db:
            before = _entries(db, self.name)
            known = {entry.run: entry.plan for entry in before}
            if run in known:
                if known[run] != plan:
                    raise LedgerError(f"run {run} of {self.name!r} was charged for another plan: start a new run")
                return run
            total = self._epsilon([*known.values(), plan])
            if not total <= self.budget.epsilon:  # so that nan is refused, too
                now = self._epsilon(list(known.values()))
                raise LedgerError(
                    f"{self.name!r} would have spent ε = {total:.4g} of {self.budget.epsilon:g} (now {now:.4g}, in "
                    f"{len(before)} fits): plan for less, or have its budget raised"
                )
            new = "insert into entries (account, run, plan, purpose, state, charged) values (?, ?, ?, ?, 'intent', ?)"
            db.execute(new, (self.name, run, json.dumps(to_plain(plan)), purpose, _now()))
            return run

    def commit(self, run: str) -> None:
        """Say that the release of this run is complete; once is enough, twice does no harm."""
        with _writing(self.path) as db:
            change = "update entries set state = 'committed', committed = ? where run = ? and account = ? and state = ?"
            done = db.execute(change, (_now(), run, self.name, "intent")).rowcount
            if not done and not any(entry.run == run for entry in _entries(db, self.name)):
                raise LedgerError(f"{self.name!r} has no run {run}: nothing was charged under that name")

    def _epsilon(self, plans: list[Any]) -> float:
        if not plans:
            return 0.0
        if self.budget.adaptive:
            searches = [part for part in plans if isinstance(part, Search)]
            require(not searches, "adaptive", True, "be False where a search is charged: a filter has no price for it")
            return filtered_epsilon(flat(plans), self.budget.epsilon, self.budget.delta)
        return composed_epsilon(plans, self.budget.delta)

    def _check(self, plan: Charge) -> None:
        rows = self.budget.num_rows
        for part in (plan,) if isinstance(plan, Search) else phases(plan):
            asked = part.num_rows
            require(rows in (None, asked), "num_rows", asked, f"be {rows}, as {self.name!r} was declared")
            for name in ("relation", "unit"):
                kept, asked = getattr(self.budget, name), getattr(part, name)
                if kept != asked:
                    raise LedgerError(f"{self.name!r} is kept for {name} {kept!r}, and this plan is for {asked!r}")


def open_account(path: str | Path, name: str, budget: Budget) -> Account:
    """A new account, in a new ledger if there is none at `path`; an account is never opened twice."""
    path = Path(path)
    require(bool(name.strip()) and name.isprintable(), "name", repr(name), "be a name that can be printed")
    require(0 < budget.epsilon < float("inf"), "epsilon", budget.epsilon, "be positive and finite")
    require(0 < budget.delta < 1, "delta", budget.delta, "lie in (0, 1), well below one over the number of rows")
    relations = sorted(set(SAMPLINGS.values()))
    require(budget.relation in relations, "relation", budget.relation, f"be one of {', '.join(relations)}")
    rows = budget.num_rows
    require(rows is None or rows >= 1, "num_rows", rows, "be a whole number ≥ 1")
    ok = bool(budget.unit.strip()) and budget.unit.isprintable()
    require(ok, "unit", repr(budget.unit), "be row, or the name of the schema's unit")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
    with _writing(path, new=True) as db:
        if db.execute("select 1 from accounts where name = ?", (name,)).fetchone():
            raise LedgerError(f"{path} has an account {name!r} already: its budget stays as it was declared")
        row = (name, *budget[:4], int(budget.adaptive), budget.unit, _now())
        db.execute(f"insert into accounts values ({', '.join('?' * len(row))})", row)
    return Account(path, name)


def accounts(path: str | Path) -> list[Account]:
    """All accounts of a ledger, by name."""
    with _opened(Path(path)) as db:
        names = [row[0] for row in db.execute("select name from accounts order by name")]
    return [Account(Path(path), name) for name in names]


def export(path: str | Path) -> dict[str, Any]:
    """The whole ledger as plain values, for JSON."""
    return {
        "format": FORMAT,
        "accounts": [
            {
                "name": account.name,
                "budget": account.budget._asdict(),
                "spent": account.spent(),
                "entries": [{**entry._asdict(), "plan": to_plain(entry.plan)} for entry in account.entries()],
            }
            for account in accounts(path)
        ],
    }


def _entries(db: sqlite3.Connection, name: str) -> list[Entry]:
    columns = "run, plan, purpose, state, charged, committed"
    rows = db.execute(f"select {columns} from entries where account = ? order by id", (name,))
    try:
        return [Entry(row[0], from_plain(json.loads(row[1])), *row[2:]) for row in rows]
    except (TypeError, ValueError) as error:  # what was spent is not known, so nothing more may be
        raise LedgerError(f"an entry of {name!r} is damaged ({error}): restore the ledger from a copy") from None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def _writing(path: Path, new: bool = False) -> Iterator[sqlite3.Connection]:
    """One transaction that holds the write lock from its first statement; all or nothing."""
    with _opened(path, new) as db:
        db.execute("begin immediate")
        try:
            yield db
        except BaseException:
            db.execute("rollback")
            raise
        db.execute("commit")


@contextmanager
def _opened(path: Path, new: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection of its own for each use: none is ever shared between threads or processes."""
    if not new and not path.is_file():
        raise LedgerError(f"there is no ledger at {path}: start one with discreet ledger init")
    try:
        if new:
            _prepare(path)
        with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as db:
            if _stamp(db) != (APPLICATION, FORMAT):
                raise _foreign(path)
            db.execute("pragma synchronous = full")
            yield db
    except sqlite3.DatabaseError as error:
        raise LedgerError(f"{path} cannot be used as a ledger: {error}") from None


def _prepare(path: Path) -> None:
    """Make an empty file, or none, a ledger; one that is none, or is one, stays as it is."""
    if path.exists():
        reading = f"{path.absolute().as_uri()}?mode=ro"  # a connection that could write would tidy up when it closes
        with closing(sqlite3.connect(reading, uri=True, timeout=PATIENCE)) as db:
            if _stamp(db) == (APPLICATION, FORMAT):
                return
            if _stamp(db) != (0, 0) or _holds_tables(db):
                raise _foreign(path)
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as db:
        db.execute("pragma journal_mode = wal")
        db.execute("begin immediate")
        if not _holds_tables(db):
            for statement in _TABLES.split(";"):
                db.execute(statement)
            db.execute(f"pragma application_id = {APPLICATION}")
            db.execute(f"pragma user_version = {FORMAT}")
        db.execute("commit")


def _stamp(db: sqlite3.Connection) -> tuple[int, int]:
    """Whose file this is, and of which format; an empty one has zeros."""
    application, form = (db.execute(f"pragma {name}").fetchone()[0] for name in ("application_id", "user_version"))
    return application, form


def _holds_tables(db: sqlite3.Connection) -> bool:
    return db.execute("select 1 from sqlite_master").fetchone() is not None


def _foreign(path: Path) -> LedgerError:
    return LedgerError(f"{path} is no ledger of format {FORMAT}: give the file that discreet ledger init made")
