"""The effects and capabilities of a tool, declared for policy to read.

The kinds, their defaults and their words are those of the Rust SDK.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple, Self


class ExecutionScope(StrEnum):
    """The place of a call: in a user-visible turn, or in background maintenance."""

    FOREGROUND = "foreground"
    BACKGROUND = "background"


class EffectReversibility(StrEnum):
    """The way back from an effect, if there is one."""

    REVERSIBLE = "reversible"
    PARTIALLY_REVERSIBLE = "partially_reversible"
    IRREVERSIBLE = "irreversible"


class EffectConfirmation(StrEnum):
    """The need to ask a person before an effect happens."""

    NEVER = "never"
    ON_RISK = "on_risk"
    ALWAYS = "always"


class DryRunSupport(StrEnum):
    """The ability of a tool to show an effect before it happens."""

    NOT_SUPPORTED = "not_supported"
    SUPPORTED = "supported"
    REQUIRED_BEFORE_EXECUTE = "required_before_execute"


class ToolEffectKind(StrEnum):
    """The side effects that a tool may declare."""

    READ_FILE = "read_file"
    READ_SECRET = "read_secret"
    WRITE_FILE = "write_file"
    DELETE_FILE = "delete_file"
    RUN_PROCESS = "run_process"
    NETWORK_REQUEST = "network_request"
    SEND_MESSAGE = "send_message"
    SPEND_MONEY = "spend_money"
    DEPLOY = "deploy"
    MODIFY_CREDENTIAL = "modify_credential"
    PERSIST_MEMORY = "persist_memory"
    PUBLISH_CONTENT = "publish_content"
    SCHEDULE_TASK = "schedule_task"
    GENERATE_MEDIA = "generate_media"
    INTROSPECT_RUNTIME = "introspect_runtime"
    DELEGATE_WORK = "delegate_work"

    @property
    def is_mutating(self) -> bool:
        return self not in _HARMLESS and self is not ToolEffectKind.READ_SECRET

    @property
    def default_reversibility(self) -> EffectReversibility:
        if self in _HARMLESS:
            return EffectReversibility.REVERSIBLE
        if self in _FINAL:
            return EffectReversibility.IRREVERSIBLE
        return EffectReversibility.PARTIALLY_REVERSIBLE

    @property
    def default_confirmation(self) -> EffectConfirmation:
        return EffectConfirmation.ON_RISK if self in _HARMLESS else EffectConfirmation.ALWAYS


_HARMLESS = {ToolEffectKind.READ_FILE, ToolEffectKind.NETWORK_REQUEST, ToolEffectKind.INTROSPECT_RUNTIME}
_FINAL = {
    ToolEffectKind.READ_SECRET,
    ToolEffectKind.DELETE_FILE,
    ToolEffectKind.SEND_MESSAGE,
    ToolEffectKind.SPEND_MONEY,
    ToolEffectKind.DEPLOY,
    ToolEffectKind.MODIFY_CREDENTIAL,
    ToolEffectKind.PUBLISH_CONTENT,
}


class _Effect(NamedTuple):
    kind: ToolEffectKind
    target: str
    reversibility: EffectReversibility
    confirmation: EffectConfirmation
    dry_run: DryRunSupport


class ToolEffect(_Effect):
    """One declared side effect on a target: a path, a host, a channel or another name."""

    def __new__(
        cls,
        kind: ToolEffectKind,
        target: str = "",
        reversibility: EffectReversibility | None = None,  # None: the default of the kind
        confirmation: EffectConfirmation | None = None,
        dry_run: DryRunSupport = DryRunSupport.NOT_SUPPORTED,
    ) -> Self:
        kind = ToolEffectKind(kind)  # the kind may be passed as a str
        recovery = EffectReversibility(reversibility or kind.default_reversibility)
        condition = EffectConfirmation(confirmation or kind.default_confirmation)
        return super().__new__(cls, kind, target, recovery, condition, DryRunSupport(dry_run))

    def with_target(self, target: str) -> ToolEffect:
        return self._replace(target=target)

    def with_reversibility(self, reversibility: EffectReversibility) -> ToolEffect:
        return self._replace(reversibility=reversibility)

    def with_confirmation(self, confirmation: EffectConfirmation) -> ToolEffect:
        return self._replace(confirmation=confirmation)

    def with_dry_run(self, dry_run: DryRunSupport) -> ToolEffect:
        return self._replace(dry_run=dry_run)

    def _replace(self, **fields: Any) -> Self:
        return type(self)(**(self._asdict() | fields))

    @property
    def is_mutating(self) -> bool:
        return self.kind.is_mutating

    @property
    def label(self) -> str:
        """`WriteFile:target`, or `WriteFile` without a target."""
        kind = "".join(word.capitalize() for word in self.kind.split("_"))
        return f"{kind}:{self.target}" if self.target else kind


class ToolCapabilities(NamedTuple):
    """Hints for policy about a tool's part in a run."""

    emits_progress: bool = False
    emits_observer_text: bool = False
    background_safe: bool = False
    effects: tuple[ToolEffect, ...] = ()

    def with_effect(self, effect: ToolEffect) -> ToolCapabilities:
        return self.with_effects([effect])

    def with_effects(self, effects: Iterable[ToolEffect]) -> ToolCapabilities:
        return self._replace(effects=(*self.effects, *effects))
