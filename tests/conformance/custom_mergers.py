"""The user mergers of ``custom.json``, each as its ``custom_rule`` says: by the row contract, and one by groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lakemerge import DELETE, Delete, Merger, Record, RecordRefusedError, RowKind, RowMerger, Traits
from mergers import Groups, Merged, Status, TableShape

__all__ = ["CUSTOM_MERGERS"]


class CappedSum(RowMerger):
    id = "a4cb11de-6f6c-4a39-9d0c-5f1f5d0f8f21"
    name = "custom:capped-sum"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any] | Delete:
        if older["ts"] == newer["ts"]:
            return older
        counter = older["counter"] + newer["counter"]
        return DELETE if counter > 2 else {**newer, "counter": counter, "ts": max(older["ts"], newer["ts"])}


class EvenKeyDrops(RowMerger):
    id = "3b8e2c86-0f0e-4b7d-b3a5-7f5c0c1f6a02"
    name = "custom:even-key-drops"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any] | Delete:
        winner = newer if newer["ts"] >= older["ts"] else older
        return DELETE if winner["id"] % 2 == 0 else winner


class StrictlyGreater(RowMerger):
    id = "c0a1d7a5-94a5-4d9f-8f0b-2b7a4a3d9e13"
    name = "custom:strictly-greater"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        later = newer["ts"] is not None and (older["ts"] is None or newer["ts"] > older["ts"])
        return newer if later else older


class OrderState(RowMerger):
    id = "58f7b9d2-1a6e-4c44-9a3e-6d2f1b0c7e54"
    name = "custom:order-state"

    def merge(self, older: Record, newer: Record) -> Mapping[str, Any]:
        steps = ("created", "paid", "cancelled")
        row = {column: older[column] if value is None else value for column, value in newer.items()}
        return {**row, "state": max(older["state"], newer["state"], key=steps.index)}


class Highest(Merger):
    """The record with the highest ``v``, whole; of several the last one. Null is lowest."""

    id = "2f9d3a61-77c2-4d07-9a34-0c8b5b1e6d10"
    name = "custom:highest"

    def check_kinds(self, shape: TableShape, kinds: frozenset[RowKind]) -> None:
        if kinds - {RowKind.INSERT, RowKind.UPDATE_AFTER}:
            raise RecordRefusedError("custom:highest takes no deletes")

    def traits(self, shape: TableShape) -> Traits:
        return Traits(uses_ordering=False)

    def merge_groups(self, groups: Groups) -> Merged:
        count = len(groups.offsets) - 1
        values = groups.column("v")
        is_null = values.is_null().to_numpy(zero_copy_only=False)
        order = np.lexsort(
            (
                np.arange(len(values)),
                values.fill_null(0).to_numpy(zero_copy_only=False),
                ~is_null,
                np.repeat(np.arange(count), groups.sizes),
            )
        )
        return Merged(np.full(count, Status.ROW, dtype=np.int8), order[groups.offsets[1:] - 1])


CUSTOM_MERGERS: tuple[type[Merger], ...] = (CappedSum, EvenKeyDrops, StrictlyGreater, OrderState, Highest)
