package lakemerge.spark;

import com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.DeltaBatchWrite;
import org.apache.spark.sql.connector.write.DeltaWrite;
import org.apache.spark.sql.connector.write.DeltaWriteBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.RowLevelOperation;
import org.apache.spark.sql.connector.write.SupportsDelta;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** UPDATE, DELETE and MERGE: a transaction on the version at which the table was loaded. */
final class RowLevelCommand implements SupportsDelta {
  private final LakeMergeTable table;
  private final RowLevelOperation.Command command;

  RowLevelCommand(LakeMergeTable table, RowLevelOperation.Command command) {
    this.table = table;
    this.command = command;
  }

  @Override
  public RowLevelOperation.Command command() {
    return command;
  }

  @Override
  public String description() {
    return command + " of " + table.name();
  }

  @Override
  public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
    return table.scan(options, true);
  }

  @Override
  public NamedReference[] rowId() {
    return table.key().stream()
        .map(name -> Expressions.column("`" + name.replace("`", "``") + "`"))
        .toArray(NamedReference[]::new);
  }

  @Override
  public NamedReference[] requiredMetadataAttributes() {
    return MetadataColumns.references(table.remembered());
  }

  /** A row that is updated keeps its key, so it is written once. */
  @Override
  public boolean representUpdateAsDeleteAndInsert() {
    return false;
  }

  @Override
  public DeltaWriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    return new DeltaWriteBuilder() {
      @Override
      public DeltaWrite build() {
        return new DeltaWrite() {
          @Override
          public DeltaBatchWrite toBatch() {
            return new TableWrite.Delta(table, info, spec());
          }
        };
      }
    };
  }

  private ObjectNode spec() {
    return Channel.JSON
        .createObjectNode()
        .put("tableId", table.id())
        .put("version", table.version)
        .put("operation", command.toString())
        .put("isolation", table.isolation())
        .put("states", true)
        // Two source rows without a match may have one key. Spark sees only rows that match twice.
        .put("once", command == RowLevelOperation.Command.MERGE);
  }
}
