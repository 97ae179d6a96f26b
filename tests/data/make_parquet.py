"""Writes the Parquet files that tests/corpus_test.cpp reads. Needs pyarrow; run it in this folder."""

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 23
NULLS = {0, 7, 8, 22}


def text(row):
    """Text that a test can make again: each row is longer than the one before, and not only ASCII."""
    return "".join(f"Row {row} says it {i} times, café 木.\n" for i in range(row))


def fineweb_edu(text_type=pa.string(), rows=range(ROWS)):
    """A table with the columns of FineWeb-Edu."""
    rows = list(rows)
    return pa.table(
        {
            "text": pa.array([None if r in NULLS else text(r) for r in rows], text_type),
            "id": [f"<urn:uuid:{r:08d}>" for r in rows],
            "dump": ["CC-MAIN-0000-00"] * len(rows),
            "url": [f"https://example.org/{r}" for r in rows],
            "file_path": [f"crawl/{r}.warc.gz" for r in rows],
            "language": ["en"] * len(rows),
            "language_score": [0.9 + r / 1000 for r in rows],
            "token_count": pa.array([r * 30 for r in rows], pa.int64()),
            "score": [2.5 + r / 100 for r in rows],
            "int_score": pa.array([3] * len(rows), pa.int64()),
        }
    )


def write(name, table, **options):
    pq.write_table(table, name, row_group_size=10, write_page_checksum=True, write_statistics=False, **options)


write("fineweb_snappy.parquet", fineweb_edu(), compression="snappy")
# Small pages, so that a group of rows has several.
write("fineweb_zstd.parquet", fineweb_edu(pa.large_string()), compression="zstd", use_dictionary=False,
      data_page_size=256, write_batch_size=2)
write("dictionary.parquet", pa.table({"text": pa.array(["one", "two", None, "one"] * 6).dictionary_encode()}))
write("required.parquet", pa.table([["never", "null"]], pa.schema([pa.field("text", pa.string(), nullable=False)])))
write("no_text.parquet", fineweb_edu().drop_columns(["text"]))
write("numbers.parquet", pa.table({"text": [1, 2, 3]}))
write("lists.parquet", pa.table({"text": [["a", "b"], ["c"]]}))
write("all_null.parquet", fineweb_edu(rows=sorted(NULLS)))
write("no_rows.parquet", fineweb_edu(rows=[]))
