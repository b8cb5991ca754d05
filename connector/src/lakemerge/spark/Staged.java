package lakemerge.spark;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.StagedTable;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;

/**
 * A table that {@code REPLACE TABLE} defines. Nothing is written until the definition is committed, in one commit that
 * keeps the history of the table that it replaces.
 */
final class Staged implements StagedTable, SupportsWrite {
  private final String name;
  private final StructType schema;
  private final Runnable commit;

  Staged(String name, StructType schema, Runnable commit) {
    this.name = name;
    this.schema = schema;
    this.commit = commit;
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
    return EnumSet.of(TableCapability.BATCH_WRITE);
  }

  @Override
  public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
    throw Errors.refusal(
        "unsupported", "CREATE TABLE ... AS SELECT: create the table, then insert the rows with INSERT INTO");
  }

  @Override
  public void commitStagedChanges() {
    commit.run();
  }

  @Override
  public void abortStagedChanges() {}
}
