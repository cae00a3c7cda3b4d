"""TFRecord files: where each record lies, and whether its bytes are those written.

A record is its length (8 bytes), a checksum of the length (4), the data, and a checksum
of the data (4); the checksums are masked CRC-32C. A file has no footer, so that one cut
between two records looks whole: only a count from elsewhere tells (tensorflow#13463).
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HEADER_BYTES = 12
FOOTER_BYTES = 4
_MASK_DELTA = 0xA282EAD8
_HEADER = struct.Struct("<QI")


@dataclass(frozen=True)
class Damage:
    """What is wrong with a file, and the byte at which its record begins."""

    path: Path
    offset: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}, byte {self.offset}: {self.what}"


@dataclass(frozen=True)
class Framing:
    """The records of a file as their headers and footers give them.

    `offsets` [records] are the bytes at which they begin. `digest` covers each record's
    length and checksum, and so, where the data match their checksums, every byte.
    """

    path: Path
    n_bytes: int
    modified_ns: int
    offsets: np.ndarray
    digest: str
    damage: Damage | None

    @property
    def n_records(self) -> int:
        return len(self.offsets)


def read_framing(path: Path) -> Framing:
    """Walks the headers; reads 16 bytes a record and no data.

    Damage is a length that its checksum denies, or a record that ends behind the file.
    """
    offsets, headers, checksums = [], [], [b""]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        end = status.st_size
        at, damage = 0, None
        header = os.pread(descriptor, HEADER_BYTES, 0)
        while at < end:
            if len(header) < HEADER_BYTES:
                damage = Damage(
                    path, at, f"truncated: the file ends {end - at} bytes into a record"
                )
                break
            length, checksum = _HEADER.unpack(header)
            data_end = at + HEADER_BYTES + length
            if data_end + FOOTER_BYTES > end:
                damage = Damage(
                    path,
                    at,
                    f"truncated: a record of {length} bytes, but the file ends "
                    f"{max(0, end - at - HEADER_BYTES)} bytes into its data",
                )
                if masked(crc32c(header[:8])) != checksum:
                    damage = _bad_length(path, at)
                break
            tail = os.pread(descriptor, FOOTER_BYTES + HEADER_BYTES, data_end)
            offsets.append(at)
            headers.append(header)
            checksums.append(tail[:FOOTER_BYTES])
            at, header = data_end + FOOTER_BYTES, tail[FOOTER_BYTES:]
    finally:
        os.close(descriptor)
    starts = np.array(offsets, np.int64)
    bad = _bad_headers(headers)
    if bad is not None:
        # What follows a wrong length is no record; the walk behind it means nothing.
        starts, damage = starts[:bad], _bad_length(path, int(starts[bad]))
    digest = hashlib.sha256(b"".join(headers) + b"".join(checksums)).hexdigest()
    return Framing(path, end, status.st_mtime_ns, starts, digest, damage)


def _bad_length(path: Path, offset: int) -> Damage:
    return Damage(path, offset, "corrupt: a record's length fails its checksum")


def _bad_headers(headers: list[bytes]) -> int | None:
    """The first header whose length fails its checksum."""
    if not headers:
        return None
    table = np.frombuffer(b"".join(headers), np.uint8).reshape(-1, HEADER_BYTES)
    crc = np.full(len(table), 0xFFFFFFFF, np.uint32)
    for column in table[:, :8].T:
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    stored = table[:, 8:].copy().view("<u4")[:, 0]
    wrong = np.flatnonzero(masked(crc ^ np.uint32(0xFFFFFFFF)) != stored)
    return int(wrong[0]) if len(wrong) else None


def reader(path: Any, offset: Any) -> Any:
    """TensorFlow's reader from the record at a byte on; it checks each checksum.

    For a dataset's function: outside of one, TensorFlow cannot make this op's graph.
    """
    import tensorflow as tf

    variant = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path],
        compression_type="",
        buffer_size=1 << 20,
        byte_offsets=[tf.cast(offset, tf.int64)],
    )
    return tf.data.experimental.from_variant(variant, tf.TensorSpec([], tf.string))


def records(framing: Framing, batch: int, first: int = 0) -> Iterator[tuple[int, Any]]:
    """(number of the first, their data [n]) of `batch` records at a time from `first`
    on, each checked against its checksum, up to damage that the headers show.

    Raises DamagedRecord at the first that fails.
    """
    import tensorflow as tf

    number = first
    try:
        for data in _from(framing, number).batch(batch):
            yield number, data
            number += len(data)
        return
    except tf.errors.DataLossError:
        pass
    # In the batch that did not come, which?
    try:
        for data in _from(framing, number).batch(1):
            yield number, data
            number += 1
    except tf.errors.DataLossError:
        raise DamagedRecord(framing, number) from None


def _from(framing: Framing, first: int) -> Any:
    import tensorflow as tf

    starts = tf.data.Dataset.from_tensor_slices(framing.offsets[first : first + 1])
    data = starts.flat_map(lambda offset: reader(str(framing.path), offset))
    return data.take(framing.n_records - first)


class DamagedRecord(Exception):
    """Record `number` of a file fails its checksum."""

    def __init__(self, framing: Framing, number: int) -> None:
        self.number = number
        self.damage = Damage(
            framing.path,
            int(framing.offsets[number]),
            f"corrupt: record {number} fails its checksum",
        )
        super().__init__(str(self.damage))


def _crc_table() -> np.ndarray:
    """CRC-32C (Castagnoli, reflected polynomial) of each byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ 0x82F63B78, table >> 1)
    return table.astype(np.uint32)


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """Of a header's few bytes; the data of records is TensorFlow's to check.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    crc = 0xFFFFFFFF
    for byte in data:
        crc = int(_TABLE[(crc ^ byte) & 0xFF]) ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked(crc: Any) -> Any:
    """A checksum as TFRecord stores it: rotated right by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF
