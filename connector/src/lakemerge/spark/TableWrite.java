package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A write that Python plans and commits; its tasks are Python's, too. */
class TableWrite implements BatchWrite {
  private final String table;
  private final BatchWrite python;

  /**
   * @param rows the schema of the rows that tasks give to Python
   * @param spec what Python has to know of the write
   * @param options those of the Python data source
   */
  TableWrite(
      String table, StructType rows, String queryId, ObjectNode spec, Map<String, String> options, boolean overwrites) {
    this.table = table;
    Map<String, String> all = new HashMap<>(options);
    all.put("lakemerge.write", spec.toString());
    python = write(rows, queryId, all, overwrites).toBatch();
  }

  /** The write of a stream, whose batches Python commits. */
  static StreamingWrite streaming(LogicalWriteInfo info, Map<String, String> options, boolean overwrites) {
    return write(info.schema(), info.queryId(), options, overwrites).toStreaming();
  }

  private static Write write(StructType rows, String queryId, Map<String, String> options, boolean overwrites) {
    PythonSource source = new PythonSource("lakemerge", options);
    WriteBuilder builder =
        ((SupportsWrite) source.table(rows)).newWriteBuilder(new Info(queryId, rows, source.options()));
    return (overwrites ? ((SupportsTruncate) builder).truncate() : builder).build();
  }

  /** A write into a table that is there. */
  TableWrite(
      LakeMergeTable table,
      StructType rows,
      LogicalWriteInfo info,
      ObjectNode spec,
      Map<String, String> own,
      boolean overwrites) {
    this(table.name(), rows, info.queryId(), withTransaction(spec), table.options(info.options(), own), overwrites);
  }

  private static ObjectNode withTransaction(ObjectNode spec) {
    PythonSource.transaction().ifPresent(txn -> spec.set("txn", txn));
    return spec;
  }

  @Override
  public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
    return Errors.unwrapped(() -> python.createBatchWriterFactory(info));
  }

  @Override
  public boolean useCommitCoordinator() {
    return python.useCommitCoordinator();
  }

  @Override
  public void commit(WriterCommitMessage[] messages) {
    for (WriterCommitMessage message : messages) {
      String key = StateRows.changedKey(message);
      if (key != null) {
        throw Errors.refusal(
            "key-assigned",
            "column " + key + " of " + table + " is part of its key, which is never assigned: delete the row and"
                + " insert one with the new key");
      }
    }
    Errors.unwrapped(() -> {
      python.commit(messages);
      return null;
    });
  }

  @Override
  public void abort(WriterCommitMessage[] messages) {
    // Some may not be Python's. It keeps nothing for a write that is given up, and vacuum deletes the files.
    python.abort(new WriterCommitMessage[0]);
  }

  /** A write whose rows are all states: those of an insert that must not meet a later record's rules. */
  static final class Sets extends TableWrite {
    private final StructType schema;

    Sets(LakeMergeTable table, LogicalWriteInfo info, ObjectNode spec) {
      super(table, StateRows.schema(table.schema()), info, spec, Map.of(), false);
      schema = table.schema();
    }

    @Override
    public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo info) {
      return new StateRows.SetFactory(super.createBatchWriterFactory(info), schema);
    }
  }

  /** The write of an UPDATE, DELETE or MERGE. */
  static final class Delta extends TableWrite implements DeltaBatchWrite {
    private final StructType schema;
    private final LogicalWriteInfo info;

    Delta(LakeMergeTable table, LogicalWriteInfo info, ObjectNode spec) {
      super(table, StateRows.schema(table.schema()), info, spec, Map.of(), false);
      schema = table.schema();
      this.info = info;
    }

    @Override
    public DeltaWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
      DataWriterFactory python = super.createBatchWriterFactory(physical);
      StructType ids = info.rowIdSchema().orElseGet(StructType::new);
      return new StateRows.DeltaFactory(python, schema, ids, info.metadataSchema().orElseGet(StructType::new));
    }
  }

  private record Info(String queryId, StructType schema, CaseInsensitiveStringMap options)
      implements LogicalWriteInfo {}
}
