package lakemerge.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.function.Supplier;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that {@code CREATE TABLE ... AS SELECT} or {@code REPLACE TABLE} defines. It comes to be in one commit, with
 * its rows, or not at all. One that it replaces keeps its history.
 */
final class Staged implements StagedTable, SupportsWrite {
  private final String name;
  private final StructType schema;
  private final Map<String, String> storage;
  private final Supplier<JsonNode> definition;
  private final Runnable withoutRows;
  private boolean hasRows;

  /**
   * @param definition asks Python what the write has to know
   * @param withoutRows makes the table if no rows are written
   */
  Staged(
      String name,
      StructType schema,
      Map<String, String> storage,
      Supplier<JsonNode> definition,
      Runnable withoutRows) {
    this.name = name;
    this.schema = schema;
    this.storage = storage;
    this.definition = definition;
    this.withoutRows = withoutRows;
  }

  @Override
  public String name() {
    return name;
  }

  @Override
  public StructType schema() {
    return schema;
  }

  @Override
  public Set<TableCapability> capabilities() {
    return EnumSet.of(TableCapability.BATCH_WRITE, TableCapability.TRUNCATE);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    Sparks.checkWrites("CREATE TABLE ... AS SELECT");
    return new Builder(info);
  }

  @Override
  public void commitStagedChanges() {
    if (!hasRows) {
      withoutRows.run();
    }
  }

  /** Nothing is there. Files of rows are vacuum's. */
  @Override
  public void abortStagedChanges() {}

  private final class Builder implements WriteBuilder, SupportsTruncate {
    private final LogicalWriteInfo info;

    Builder(LogicalWriteInfo info) {
      this.info = info;
    }

    /** There are no rows before these. */
    @Override
    public WriteBuilder truncate() {
      return this;
    }

    @Override
    public Write build() {
      return new Write() {
        @Override
        public String description() {
          return name;
        }

        @Override
        public BatchWrite toBatch() {
          hasRows = true;
          JsonNode staged = definition.get();
          Map<String, String> options = new HashMap<>(storage);
          options.put("path", staged.path("path").asText());
          ObjectNode spec = Channel.JSON.createObjectNode();
          spec.set("create", staged.path("create"));
          return new TableWrite(name, info.schema(), info.queryId(), spec, options, false);
        }
      };
    }
  }
}
