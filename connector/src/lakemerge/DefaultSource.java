package lakemerge;

import java.util.Map;
import lakemerge.spark.FormatTable;
import lakemerge.spark.SessionCatalogTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCatalog;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("lakemerge")}: the Python data source of that name, except for tables of Spark's own catalog. Rows of a
 * table are read by LakeMerge's own scan, see {@link FormatTable}.
 *
 * <p>Spark takes a class of this name before it looks for Python data sources, so the two do not clash. It gives the
 * options of a table of {@code spark_catalog} to {@link #getTable}, and Python never sees them: it would accept each
 * {@code CREATE TABLE} with columns, and know nothing of the table afterwards. The build adds a class for each other
 * spelling, because Spark's names of sources have no case, and those of classes do.
 */
public class DefaultSource implements TableProvider {
  private static final String NAME = "lakemerge";

  private final PythonDataSourceV2 python = new PythonDataSourceV2();
  /** Which version Python was asked for the schema of; {@code null} if it was not, or does not say. */
  private String named;

  public DefaultSource() {
    python.setShortName(NAME);
  }

  @Override
  public StructType inferSchema(CaseInsensitiveStringMap options) {
    if (isOfSessionCatalog(options)) {
      throw SessionCatalogTable.refusal();
    }
    StructType answered = python.inferSchema(FormatTable.asking(options));
    named = FormatTable.named(answered);
    return named == null ? answered : FormatTable.columns(answered);
  }

  @Override
  public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
    if (isOfSessionCatalog(properties)) {
      return new SessionCatalogTable();
    }
    Table table = python.getTable(schema, partitioning, properties);
    return named == null ? table : FormatTable.of(table, schema, properties, named);
  }

  @Override
  public boolean supportsExternalMetadata() {
    return true;
  }

  private static boolean isOfSessionCatalog(Map<String, String> properties) {
    return NAME.equalsIgnoreCase(properties.get(TableCatalog.PROP_PROVIDER));
  }
}
