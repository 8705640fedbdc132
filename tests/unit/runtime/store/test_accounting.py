"""Bytes of one tier against a plain list."""

from hypothesis import settings as hypothesis_settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lookout.runtime.store.accounting import TierAccounting


class AccountingMachine(RuleBasedStateMachine):
    """Accounting against a list of [key, size, pinned], least recently used first."""

    budget = 20

    def __init__(self) -> None:
        super().__init__()
        self.accounting = TierAccounting(self.budget)
        self.model: list[list[object]] = []
        self.names = 0

    @rule(size=st.integers(1, 25), pinned=st.booleans(), too=st.booleans())
    def admit(self, size: int, pinned: bool, too: bool) -> None:
        victims = self.accounting.victims(size, pinned_too=too)
        order = [row for row in self.model if not row[2]] + [row for row in self.model if row[2] and too]
        need = sum(int(row[1]) for row in self.model) + size - self.budget  # type: ignore[call-overload]
        expected: list[object] | None = []
        for row in order:
            if need <= 0:
                break
            expected.append(row[0])  # type: ignore[union-attr]
            need -= int(row[1])  # type: ignore[call-overload]
        if need > 0:
            expected = None
        assert victims == expected
        if victims is None:
            return
        for key in victims:
            self.accounting.remove(key)
        self.model = [row for row in self.model if row[0] not in victims]
        self.names += 1
        self.accounting.add(str(self.names), size, pinned)
        self.model.append([str(self.names), size, pinned])

    @precondition(lambda self: self.model)
    @rule(which=st.integers(0, 100), act=st.sampled_from(["touch", "pin", "unpin", "remove"]))
    def change(self, which: int, act: str) -> None:
        row = self.model.pop(which % len(self.model))
        getattr(self.accounting, act)(row[0])
        if act == "remove":
            return
        moved = {"touch": row[2], "pin": True, "unpin": False}[act]
        if act != "touch" and moved == row[2]:
            self.model.insert(which % (len(self.model) + 1), row)
            return
        self.model.append([row[0], row[1], moved])

    @invariant()
    def books_balance(self) -> None:
        assert self.accounting.used == sum(int(row[1]) for row in self.model) <= self.budget  # type: ignore[call-overload]
        assert self.accounting.pinned_bytes == sum(int(row[1]) for row in self.model if row[2])  # type: ignore[call-overload]
        assert len(self.accounting) == len(self.model)


AccountingMachine.TestCase.settings = hypothesis_settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestAccounting = AccountingMachine.TestCase
