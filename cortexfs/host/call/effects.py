"""A manifest's declared effects, as types of the SDK."""

from __future__ import annotations

from collections.abc import Iterable

from cortexfs import sdk
from cortexfs.core import hostcalls
from cortexfs.core.manifest.toml import ManifestEffect


def effects_of(
    declared: Iterable[hostcalls.Effect | ManifestEffect], *, are_shown: bool = False
) -> tuple[sdk.ToolEffect, ...]:
    """Returns the effects as the SDK's types. With `are_shown` a dry run shows each, whatever it declares."""
    return tuple(
        sdk.ToolEffect(
            sdk.ToolEffectKind(each.kind),
            each.target,
            sdk.EffectReversibility(each.reversibility),
            sdk.EffectConfirmation(each.confirmation),
            sdk.DryRunSupport.SUPPORTED if are_shown else sdk.DryRunSupport(each.dry_run),
        )
        for each in declared
    )
