package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Collectors;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsDynamicOverwrite;
import org.apache.spark.sql.connector.write.SupportsOverwriteV2;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend;

/**
 * INSERT INTO, which is an upsert, INSERT OVERWRITE, and streams, whose output mode may be "update" for an upsert.
 *
 * <p>A MERGE that only inserts arrives here, too: Spark plans it as an append. So a statement that has read the table
 * is judged by what it read, as a transaction is.
 */
final class InsertBuilder
    implements WriteBuilder, SupportsOverwriteV2, SupportsDynamicOverwrite, SupportsStreamingUpdateAsAppend {
  private final LakeMergeTable table;
  private final LogicalWriteInfo info;
  private final Optional<Long> readVersion;
  private final Map<String, String> overwrite = new HashMap<>();
  private boolean overwrites;

  InsertBuilder(LakeMergeTable table, LogicalWriteInfo info, Optional<Long> readVersion) {
    this.table = table;
    this.info = info;
    this.readVersion = readVersion;
  }

  @Override
  public WriteBuilder truncate() {
    overwrites = true;
    return this;
  }

  @Override
  public boolean canOverwrite(Predicate[] predicates) {
    return true;
  }

  @Override
  public WriteBuilder overwrite(Predicate[] predicates) {
    overwrites = true;
    String where = Arrays.stream(predicates)
        .filter(predicate -> !predicate.name().equals("ALWAYS_TRUE"))
        .map(predicate -> Filters.exact(predicate).orElseThrow(() -> Errors.refusal(
            "filter", "INSERT OVERWRITE takes conditions on partition columns, not " + predicate.describe())))
        .collect(Collectors.joining(" AND "));
    if (!where.isEmpty()) {
      overwrite.put("replaceWhere", where);
    }
    return this;
  }

  @Override
  public WriteBuilder overwriteDynamicPartitions() {
    overwrites = true;
    overwrite.put("partitionOverwriteMode", "dynamic");
    return this;
  }

  @Override
  public Write build() {
    return new Write() {
      @Override
      public String description() {
        return table.name();
      }

      @Override
      public BatchWrite toBatch() {
        return batch();
      }

      @Override
      public StreamingWrite toStreaming() {
        return stream();
      }
    };
  }

  /** Batches are upserts of the columns that they have. Python knows what a stream may bring besides. */
  private StreamingWrite stream() {
    return TableWrite.streaming(info, table.options(info.options(), overwrite), overwrites);
  }

  private BatchWrite batch() {
    for (String name : info.schema().fieldNames()) {
      if (!Arrays.asList(table.schema().fieldNames()).contains(name)) {
        throw Errors.refusal("frame", "column " + name + " is not one of " + table.name() + " that can be written");
      }
    }
    ObjectNode spec = Channel.JSON.createObjectNode().put("tableId", table.id());
    readVersion.ifPresent(version -> spec.put("version", version).put("isolation", table.isolation()));
    if (overwrites) {
      return new TableWrite(table, info.schema().asNullable(), info, spec, overwrite, true);
    }
    if (readVersion.isPresent() && PythonSource.isInsertOnlyMerge()) {
      return new TableWrite.Sets(table, info, spec.put("operation", "MERGE").put("states", true).put("once", true));
    }
    return new TableWrite(table, info.schema(), info, spec, Map.of(), false);
  }
}
