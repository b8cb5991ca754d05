package lakemerge.spark;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.function.UnaryOperator;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.connector.read.HasPartitionKey;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The readers of a scan's tasks: of files, and of file slices that the kernel merges.
 *
 * @param python gives those of the kernel; {@code null} where there are none
 * @param asked the columns that the kernel gives
 * @param columns those that are read
 */
record NativeReaders(
    SparkReader spark, PartitionReaderFactory python, StructType asked, NamedColumns columns, boolean inBatches)
    implements PartitionReaderFactory {

  /** A task that reads files, or parts of them. */
  static final class Files implements HasPartitionKey {
    private final List<Piece> pieces = new ArrayList<>();
    private final Broadcast<long[][]> bits;
    private final int bucket;
    long bytes;

    /**
     * @param bits those of all files, by their numbers; {@code null}: each file has its own
     * @param bucket that of all rows; -1: they may be of several
     */
    Files(Broadcast<long[][]> bits, int bucket) {
      this.bits = bits;
      this.bucket = bucket;
    }

    @Override
    public InternalRow partitionKey() {
      return new GenericInternalRow(new Object[] {bucket});
    }

    record Piece(int number, StoredFile file) implements Serializable {}

    void add(Piece piece, long size) {
      pieces.add(piece);
      bytes += size;
    }

    Iterator<StoredFile> files() {
      return pieces.stream()
          .map(piece -> bits == null ? piece.file : piece.file.withBits(bits.value()[piece.number]))
          .iterator();
    }
  }

  /** A task that gives rows that were merged before the read. */
  record Premerged(Broadcast<byte[][]> streams, int number, int bucket) implements HasPartitionKey {
    @Override
    public InternalRow partitionKey() {
      return new GenericInternalRow(new Object[] {bucket});
    }

    MergedRows rows(StructType columns) {
      return new MergedRows(streams.value()[number], columns);
    }
  }

  /** A task of the kernel. */
  record Merged(InputPartition task) implements InputPartition {}

  @Override
  public boolean supportColumnarReads(InputPartition partition) {
    return inBatches;
  }

  @Override
  public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
    if (partition instanceof Merged merged) {
      return KernelBatches.of(python.createReader(merged.task), asked, columns.columns());
    }
    if (partition instanceof Premerged merged) {
      MergedRows rows = merged.rows(columns.stored());
      return new PartitionReader<>() {
        @Override
        public boolean next() throws IOException {
          return rows.next();
        }

        @Override
        public ColumnarBatch get() {
          return columns.of(rows.get());
        }

        @Override
        public void close() throws IOException {
          rows.close();
        }
      };
    }
    Iterator<StoredFile> files = ((Files) partition).files();
    List<Integer> required = new ArrayList<>();
    StructType stored = columns.stored();
    for (int column = 0; column < stored.size(); column++) {
      if (!stored.fields()[column].nullable()) {
        required.add(column);
      }
    }
    return new PartitionReader<>() {
      private SparkReader.Batches open;

      @Override
      public boolean next() throws IOException {
        while (open == null || !open.next()) {
          close();
          if (!files.hasNext()) {
            return false;
          }
          open = spark.new Batches(files.next());
        }
        required.forEach(this::check);
        return true;
      }

      private void check(int column) {
        ColumnarBatch batch = open.get();
        ColumnVector vector = batch.column(column);
        for (int row = 0; vector.hasNull() && row < batch.numRows(); row++) {
          if (vector.isNullAt(row)) {
            throw lacks(stored.fields()[column]);
          }
        }
      }

      @Override
      public ColumnarBatch get() {
        return columns.of(open.get());
      }

      @Override
      public void close() throws IOException {
        if (open != null) {
          open.close();
          open = null;
        }
      }
    };
  }

  @Override
  public PartitionReader<InternalRow> createReader(InputPartition partition) {
    if (partition instanceof Merged merged) {
      return python.createReader(merged.task);
    }
    if (partition instanceof Premerged merged) {
      MergedRows batches = merged.rows(columns.stored());
      UnsafeProjection projection = UnsafeProjection.create(columns.stored());
      UnaryOperator<InternalRow> named = columns.ofRows();
      return new PartitionReader<>() {
        private Iterator<InternalRow> rows = Collections.emptyIterator();

        @Override
        public boolean next() throws IOException {
          while (!rows.hasNext()) {
            if (!batches.next()) {
              return false;
            }
            rows = batches.get().rowIterator();
          }
          return true;
        }

        @Override
        public InternalRow get() {
          return named.apply(projection.apply(rows.next()));
        }

        @Override
        public void close() throws IOException {
          batches.close();
        }
      };
    }
    Iterator<StoredFile> files = ((Files) partition).files();
    StructType stored = columns.stored();
    UnaryOperator<InternalRow> named = columns.ofRows();
    return new PartitionReader<>() {
      private SparkReader.Rows open;

      @Override
      public boolean next() throws IOException {
        while (open == null || !open.next()) {
          close();
          if (!files.hasNext()) {
            return false;
          }
          open = spark.new Rows(files.next());
        }
        return true;
      }

      @Override
      public InternalRow get() {
        InternalRow row = open.get();
        for (int column = 0; column < stored.size(); column++) {
          if (!stored.fields()[column].nullable() && row.isNullAt(column)) {
            throw lacks(stored.fields()[column]);
          }
        }
        return named.apply(row);
      }

      @Override
      public void close() throws IOException {
        if (open != null) {
          open.close();
          open = null;
        }
      }
    };
  }

  private static RuntimeException lacks(StructField column) {
    return Errors.refusal(
        "table-damaged",
        "column " + column.name() + " is NOT NULL, and a stored row has no value in it. Run"
            + " `lakemerge check`, which names the file");
  }
}
