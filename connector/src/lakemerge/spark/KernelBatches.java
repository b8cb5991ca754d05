package lakemerge.spark;

import java.io.IOException;
import java.lang.reflect.Field;
import org.apache.arrow.vector.ValueVector;
import org.apache.spark.InterruptibleIterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.types.DataTypeUtils;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.execution.RowToColumnConverter;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;
import scala.collection.Iterator;

/**
 * The rows of a Python data source in batches. Spark makes rows of the Arrow batches that Python sends, and the batches
 * are taken before it does. Where Spark does this in another way than is known here, its rows are made batches again.
 */
final class KernelBatches {
  private static final Logger LOG = LoggerFactory.getLogger(KernelBatches.class);
  private static final String FROM_PYTHON = "org.apache.spark.api.python.BasePythonRunner$ReaderIterator";
  private static final int DEEPEST = 8;
  private static final int BATCH_ROWS = 4096;

  private KernelBatches() {}

  /**
   * @param rows those of Python's reader, of which none was read
   * @param asked the columns that Python sends
   * @param columns the first of these, which are read
   */
  static PartitionReader<ColumnarBatch> of(PartitionReader<InternalRow> rows, StructType asked, StructType columns) {
    Iterator<?> batches = sent(rows);
    if (batches == null) {
      LOG.info("Rows of the merge kernel are copied into batches");
      return new Copied(rows, columns);
    }
    return new Sent(rows, batches, asked, columns);
  }

  /**
   * The batches behind the rows; {@code null} where they are not found. Spark's reader has the rows in
   * {@code outputIter}, which is a map over a flat map over the iterator of batches.
   */
  private static Iterator<?> sent(PartitionReader<InternalRow> rows) {
    try {
      Object current = field(rows, "outputIter");
      for (int depth = 0; depth < DEEPEST && current instanceof Iterator<?> found; depth++) {
        if (found instanceof InterruptibleIterator<?> && isFromPython(field(found, "delegate"))) {
          return found;
        }
        current = field(found, "$outer");
      }
    } catch (ReflectiveOperationException | RuntimeException error) {
      LOG.info("The batches of the merge kernel were not found", error);
    }
    return null;
  }

  private static boolean isFromPython(Object iterator) {
    for (Class<?> kind = iterator == null ? null : iterator.getClass(); kind != null; kind = kind.getSuperclass()) {
      if (kind.getName().equals(FROM_PYTHON)) {
        return true;
      }
    }
    return false;
  }

  private static Object field(Object of, String name) throws ReflectiveOperationException {
    for (Class<?> kind = of.getClass(); kind != null; kind = kind.getSuperclass()) {
      for (Field field : kind.getDeclaredFields()) {
        if (field.getName().equals(name)) {
          field.setAccessible(true);
          return field.get(of);
        }
      }
    }
    return null;
  }

  /** The batches as Python sent them. */
  private static final class Sent implements PartitionReader<ColumnarBatch> {
    private final PartitionReader<InternalRow> rows;
    private final Iterator<?> batches;
    private final StructType asked;
    private final StructType columns;
    private boolean isChecked;
    private ColumnarBatch batch;

    Sent(PartitionReader<InternalRow> rows, Iterator<?> batches, StructType asked, StructType columns) {
      this.rows = rows;
      this.batches = batches;
      this.asked = asked;
      this.columns = columns;
    }

    @Override
    public boolean next() {
      while (batches.hasNext()) {
        ColumnarBatch sent = (ColumnarBatch) batches.next();
        if (sent.numRows() == 0) {
          continue;
        }
        ArrowColumnVector row = (ArrowColumnVector) sent.column(0);
        check(row);
        ColumnVector[] vectors = new ColumnVector[columns.size()];
        for (int column = 0; column < vectors.length; column++) {
          vectors[column] = new Lent(row.getChild(column).getValueVector());
        }
        batch = new ColumnarBatch(vectors, sent.numRows());
        return true;
      }
      return false;
    }

    /** Generated code would read a vector of another type without an error. */
    private void check(ArrowColumnVector row) {
      if (!isChecked && !DataTypeUtils.sameType(row.dataType(), asked)) {
        throw Errors.refusal(
            "native-read",
            "the merge kernel gave " + row.dataType().sql() + " for " + asked.sql() + "; set " + NativeReads.SWITCH
                + "=off in the session");
      }
      isChecked = true;
    }

    @Override
    public ColumnarBatch get() {
      return batch;
    }

    @Override
    public void close() throws IOException {
      rows.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return rows.currentMetricsValues();
    }
  }

  /** Spark closes vectors after a batch. These belong to the stream of batches, which uses them again. */
  static final class Lent extends ArrowColumnVector {
    Lent(ValueVector vector) {
      super(vector);
    }

    @Override
    public void close() {}

    @Override
    public void closeIfFreeable() {}
  }

  /** Rows that are copied into batches. */
  private static final class Copied implements PartitionReader<ColumnarBatch> {
    private final PartitionReader<InternalRow> rows;
    private final StructType columns;
    private final RowToColumnConverter converter;
    private final WritableColumnVector[] vectors;
    private final ColumnarBatch batch;

    Copied(PartitionReader<InternalRow> rows, StructType columns) {
      this.rows = rows;
      this.columns = columns;
      converter = new RowToColumnConverter(columns);
      vectors = OnHeapColumnVector.allocateColumns(BATCH_ROWS, columns);
      batch = new ColumnarBatch(vectors);
    }

    @Override
    public boolean next() throws IOException {
      for (WritableColumnVector vector : vectors) {
        vector.reset();
      }
      int count = 0;
      while (count < BATCH_ROWS && rows.next()) {
        InternalRow row = rows.get();  // this moves Python's reader on
        if (!columns.isEmpty()) {
          converter.convert(row, vectors);
        }
        count++;
      }
      batch.setNumRows(count);
      return count > 0;
    }

    @Override
    public ColumnarBatch get() {
      return batch;
    }

    @Override
    public void close() throws IOException {
      rows.close();
      batch.close();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
      return rows.currentMetricsValues();
    }
  }
}
