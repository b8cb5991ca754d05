package lakemerge.spark;

import java.util.Set;
import org.apache.spark.sql.connector.catalog.Column;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.types.StructType;

/**
 * An entry {@code USING lakemerge} of {@code spark_catalog}. Spark asks for its columns before it makes one and before
 * each use, and is refused. It does not ask when it drops one, so an entry that was made without this jar can go.
 */
public final class SessionCatalogTable implements Table {
  /** What every use says. */
  public static RuntimeException refusal() {
    return Errors.refusal(
        "unsupported",
        "spark_catalog has no LakeMerge tables: call lakemerge.catalog(spark, 'lake', warehouse=...), and name the table"
            + " lake.NAMESPACE.TABLE, or lakemerge.`PATH`");
  }

  @Override
  public String name() {
    return "lakemerge";
  }

  @Override
  public StructType schema() {
    throw refusal();
  }

  @Override
  public Column[] columns() {
    throw refusal();
  }

  @Override
  public Set<TableCapability> capabilities() {
    return Set.of();
  }
}
