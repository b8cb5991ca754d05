package lakemerge.spark;

import java.util.List;
import org.apache.spark.sql.connector.catalog.MetadataColumn;
import org.apache.spark.sql.connector.expressions.Expressions;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.StructType;

/**
 * Columns that travel with the id of a row that is deleted: what the table's merger remembers of it. They are not part
 * of the id, because they may be null, and Spark leaves out checks for null in an id.
 */
final class MetadataColumns {
  static final String PREFIX = "_lm_";

  private MetadataColumns() {}

  static MetadataColumn[] of(List<String> names, StructType schema) {
    return names.stream()
        .map(name -> new Column(PREFIX + name, schema.apply(name).dataType()))
        .toArray(MetadataColumn[]::new);
  }

  static NamedReference[] references(List<String> names) {
    return names.stream()
        .map(name -> Expressions.column("`" + (PREFIX + name).replace("`", "``") + "`"))
        .toArray(NamedReference[]::new);
  }

  private record Column(String name, DataType dataType) implements MetadataColumn {
    @Override
    public boolean isNullable() {
      return true;
    }

    @Override
    public String comment() {
      return "what the merger remembers of a deleted row";
    }
  }
}
