package lakemerge.spark;

import java.io.ByteArrayInputStream;
import java.io.Closeable;
import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils$;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Rows that Python has merged before the read, from an Arrow stream. A batch is good until the next one. */
final class MergedRows implements Closeable {
  private final StructType columns;
  private final BufferAllocator allocator;
  private final ArrowStreamReader stream;
  private ColumnarBatch batch;

  /** @param columns those that are read, of which the stream may have more */
  MergedRows(byte[] stream, StructType columns) {
    this.columns = columns;
    allocator = ArrowUtils$.MODULE$.rootAllocator().newChildAllocator("lakemerge-merged-rows", 0, Long.MAX_VALUE);
    this.stream = new ArrowStreamReader(new ByteArrayInputStream(stream), allocator);
  }

  boolean next() throws IOException {
    while (stream.loadNextBatch()) {
      VectorSchemaRoot root = stream.getVectorSchemaRoot();
      if (root.getRowCount() == 0) {
        continue;
      }
      if (batch == null) {
        ColumnVector[] vectors = new ColumnVector[columns.size()];
        for (int column = 0; column < vectors.length; column++) {
          vectors[column] = lent(root, columns.fields()[column]);
        }
        batch = new ColumnarBatch(vectors);
      }
      batch.setNumRows(root.getRowCount());
      return true;
    }
    return false;
  }

  private static ColumnVector lent(VectorSchemaRoot root, StructField field) {
    ArrowColumnVector found = new KernelBatches.Lent(root.getVector(field.name()));
    if (!DataTypeUtils.sameType(found.dataType(), field.dataType())) {
      throw Errors.refusal(
          "native-read",
          "merged rows have " + found.dataType().sql() + " for " + field.sql() + "; set " + NativeReads.SWITCH
              + "=off in the session");
    }
    return found;
  }

  ColumnarBatch get() {
    return batch;
  }

  @Override
  public void close() throws IOException {
    stream.close();
    allocator.close();
  }
}
