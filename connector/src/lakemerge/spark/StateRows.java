package lakemerge.spark;

import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.expressions.JoinedRow;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaWriter;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.execution.datasources.v2.python.PythonWriterCommitMessage;
import org.apache.spark.sql.types.ByteType$;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/**
 * The records of a transaction: the columns of the table, behind the kind of each record. A record is a set, which is
 * the whole row that a key has from now on, or a clear, which has its key and what its merger remembers of it.
 */
final class StateRows {
  static final String KIND = "_lm_kind";
  private static final byte SET = 4;
  private static final byte CLEAR = 5;
  /** How the message of a task begins that was given another key for a row. Python's messages are pickles. */
  private static final String KEY_CHANGED = "lakemerge: key changed: ";

  private StateRows() {}

  /** The schema of the records. All columns may be null: those of a clear are. */
  static StructType schema(StructType table) {
    StructType records = new StructType().add(KIND, ByteType$.MODULE$, false);
    for (StructField field : table.fields()) {
      records = records.add(new StructField(field.name(), field.dataType(), true, field.metadata()));
    }
    return records;
  }

  /** The key column that a task was asked to change; {@code null} for any other message. */
  static String changedKey(WriterCommitMessage message) {
    if (!(message instanceof PythonWriterCommitMessage python)) {
      return null;
    }
    String text = new String(python.pickledMessage(), StandardCharsets.UTF_8);
    return text.startsWith(KEY_CHANGED) ? text.substring(KEY_CHANGED.length()) : null;
  }

  /** Writers whose rows are all sets. Spark hands their rows over as a whole. */
  record SetFactory(DataWriterFactory python, StructType table) implements DataWriterFactory {
    @Override
    public DataWriter<InternalRow> createWriter(int partition, long task) {
      return new SetWriter(python.createWriter(partition, task), table);
    }
  }

  private static final class SetWriter implements DataWriter<InternalRow> {
    private final DataWriter<InternalRow> python;
    private final Records records;

    SetWriter(DataWriter<InternalRow> python, StructType table) {
      this.python = python;
      records = new Records(table);
    }

    @Override
    public void writeAll(Iterator<InternalRow> rows) throws IOException {
      python.writeAll(new Iterator<>() {
        @Override
        public boolean hasNext() {
          return rows.hasNext();
        }

        @Override
        public InternalRow next() {
          return records.set(rows.next());
        }
      });
    }

    @Override
    public void write(InternalRow row) {
      throw new UnsupportedOperationException("rows are written as a whole");
    }

    @Override
    public WriterCommitMessage commit() throws IOException {
      return python.commit();
    }

    @Override
    public void abort() throws IOException {
      python.abort();
    }

    @Override
    public void close() throws IOException {
      python.close();
    }
  }

  /**
   * Writers of UPDATE, DELETE and MERGE.
   *
   * @param ids the columns of a row's id, which are the table's key
   * @param metadata the columns that come with an id: what a clear remembers
   */
  record DeltaFactory(DataWriterFactory python, StructType table, StructType ids, StructType metadata)
      implements DeltaWriterFactory, Serializable {
    @Override
    public DeltaWriter<InternalRow> createWriter(int partition, long task) {
      return new StateWriter(python.createWriter(partition, task), this);
    }
  }

  private static final class StateWriter implements DeltaWriter<InternalRow> {
    private final DataWriter<InternalRow> python;
    private final DeltaFactory shape;
    private final Records records;
    private final RowBridge bridge;
    private final int[] idPlaces;
    private final int[] metadataPlaces;
    private String changedKey;

    StateWriter(DataWriter<InternalRow> python, DeltaFactory shape) {
      this.python = python;
      this.shape = shape;
      records = new Records(shape.table);
      idPlaces = places(shape.ids, "");
      metadataPlaces = places(shape.metadata, MetadataColumns.PREFIX);
      bridge = new RowBridge(python, shape.table.size() + 1);
    }

    @Override
    public void insert(InternalRow row) throws IOException {
      bridge.put(records.set(row));
    }

    @Override
    public void update(InternalRow metadata, InternalRow id, InternalRow row) throws IOException {
      for (int at = 0; at < idPlaces.length && changedKey == null; at++) {
        StructField field = shape.ids.fields()[at];
        Object now = row.isNullAt(idPlaces[at]) ? null : row.get(idPlaces[at], field.dataType());
        if (!id.get(at, field.dataType()).equals(now)) {
          changedKey = field.name();
        }
      }
      bridge.put(records.set(row));
    }

    @Override
    public void delete(InternalRow metadata, InternalRow id) throws IOException {
      Object[] values = new Object[shape.table.size()];
      copy(id, shape.ids, idPlaces, values);
      copy(metadata, shape.metadata, metadataPlaces, values);
      bridge.put(records.clear(new GenericInternalRow(values)));
    }

    /** An error here would make Spark run the task again, so the driver hears of a changed key. */
    @Override
    public WriterCommitMessage commit() throws IOException {
      WriterCommitMessage message = bridge.end();
      if (changedKey == null) {
        return message;
      }
      return new PythonWriterCommitMessage((KEY_CHANGED + changedKey).getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public void abort() {
      bridge.stop();
    }

    @Override
    public void close() throws IOException {
      bridge.stop();
      python.close();
    }

    private int[] places(StructType columns, String prefix) {
      int[] found = new int[columns.size()];
      for (int at = 0; at < found.length; at++) {
        found[at] = shape.table.fieldIndex(columns.fieldNames()[at].substring(prefix.length()));
      }
      return found;
    }

    private static void copy(InternalRow from, StructType columns, int[] places, Object[] to) {
      for (int at = 0; at < places.length; at++) {
        to[places[at]] = from.isNullAt(at) ? null : from.get(at, columns.fields()[at].dataType());
      }
    }
  }

  /** Puts the kind before the columns. The row that it gives is used again for the next. */
  private static final class Records {
    private final UnsafeProjection projection;
    private final JoinedRow joined = new JoinedRow();
    private final GenericInternalRow kind = new GenericInternalRow(1);

    Records(StructType table) {
      projection = UnsafeProjection.create(schema(table));
    }

    UnsafeRow set(InternalRow row) {
      return of(SET, row);
    }

    UnsafeRow clear(InternalRow row) {
      return of(CLEAR, row);
    }

    private UnsafeRow of(byte what, InternalRow row) {
      kind.update(0, what);
      return projection.apply(joined.apply(kind, row));
    }
  }
}
